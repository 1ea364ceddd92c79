// A run's statistics as text for a terminal.
#pragma once

#include <string>

#include "experts/statistics.h"

namespace sluice::experts {

/// Rates, where the time of a decode step goes, what became of the wanted records, and a line for each layer
/// with its hottest experts. Where options changed the results, that comes first.
std::string statistics_report(const Statistics& statistics);

/// What the options that change results did, one line each; empty where there are none.
std::string changed_results_note(const Statistics& statistics);

}  // namespace sluice::experts

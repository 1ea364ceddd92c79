// A run's statistics as a picture.
#pragma once

#include <string>

#include "experts/statistics.h"

namespace sluice::experts {

/// SVG, one file without scripts or anything from elsewhere, legible on light and on dark: above, the last
/// steps of the time line in lanes (computing, waiting, reads); below, how often each expert of each layer
/// was wanted, on a logarithmic scale.
std::string statistics_plot(const Statistics& statistics);

}  // namespace sluice::experts

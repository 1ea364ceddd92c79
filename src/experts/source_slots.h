// The records of a model's files as slots, for pools and for measurements of the drive.
#pragma once

#include <cstdint>
#include <vector>

#include "experts/ring_reader.h"
#include "store/source.h"

namespace sluice::experts {

/// `records` records of each of some precisions (places in record_layouts()), numbered one precision after
/// the other. The source lives longer.
SlotSource slots_of(const store::WeightSource& source, std::vector<std::size_t> tiers, std::int64_t records);

}  // namespace sluice::experts

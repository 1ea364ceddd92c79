// Which of a model's expert precisions a user means.
#pragma once

#include <cstddef>

#include "base/result.h"
#include "store/source.h"

namespace sluice::engine {

/// The place in record_layouts() of the precision with `bits`; 0 bits: the best. Error: the model has none
/// such; it says which it has.
Result<std::size_t> tier_of(const store::WeightSource& source, int bits);

}  // namespace sluice::engine

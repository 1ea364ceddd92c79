// Which of a model's expert precisions a user means.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/result.h"
#include "store/source.h"

namespace sluice::engine {

/// The place in record_layouts() of the precision with `bits`; 0 bits: the best. Error: the model has none
/// such; it says which it has.
Result<std::size_t> tier_of(const store::SourceForm& source, int bits);
/// The same of precisions that `what`, which names them in errors, has or will have.
Result<std::size_t> tier_of(const std::string& what, std::span<const spec::RecordLayout> layouts, int bits);

}  // namespace sluice::engine

// Parameter counts by part of the model, for `inspect`.
#pragma once

#include <cstdint>
#include <span>

#include "spec/config.h"
#include "store/dense_table.h"
#include "store/safetensors.h"
#include "store/source.h"

namespace sluice::store {

/// Counts of the dense tensors and the routed experts. The n-gram table and vision are left at zero. The MTP
/// head is one number, its experts included.
ParameterCounts count_parameters(const spec::ModelConfig& config, std::span<const DenseInfo> dense,
                                 bool with_mtp);

/// Parameters in a vision tensor; scales and biases of a quantised one count as none.
std::uint64_t vision_parameters(const TensorInfo& tensor);

}  // namespace sluice::store

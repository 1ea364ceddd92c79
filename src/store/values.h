// Reading tensor values into the few number types used in memory.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "store/tensor_index.h"

namespace sluice::store {

/// Values from element `first` on, converted to float32. BF16, F16, F32 and F8_E4M3.
Result<void> read_floats(const TensorRef& tensor, std::uint64_t first, std::span<float> out);

/// Values from element `first` on as bfloat16: BF16 as they are; F16 and F32 only where nothing is lost,
/// else kUnsupported.
Result<void> read_bfloat16(const TensorRef& tensor, std::uint64_t first, std::span<std::uint16_t> out);

Result<std::vector<std::int64_t>> read_int64(const TensorRef& tensor);

/// kUnsupported unless the dtype is BF16, F16 or F32.
Result<void> need_float(const TensorRef& tensor);

}  // namespace sluice::store

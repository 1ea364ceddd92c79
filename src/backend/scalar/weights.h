// Weights of every format as the float32 numbers they stand for.
#pragma once

#include <cstdint>
#include <span>

#include "backend/types.h"

namespace sluice::backend::scalar {

/// Code `index` of a row of codes in one of the quantised formats, `row` pointing to the row's first byte.
std::uint32_t code_at(Format format, const std::byte* row, std::int64_t index);

/// What a code stands for: q s + b with q the code itself (4 and 8 bits) or the midpoint of the 4-bit codes
/// it covers (2q + 0.5 at 3 bits, 4q + 1.5 at 2). The product is exact in float32, so the sum is the only
/// rounding.
float code_value(Format format, std::uint32_t code, float scale, float bias);

/// One weight of a matrix in host memory.
float weight_at(const Matrix& w, std::int64_t row, std::int64_t column);

/// A whole row, w.in numbers.
void dequantise_row(const Matrix& w, std::int64_t row, std::span<float> to);

}  // namespace sluice::backend::scalar

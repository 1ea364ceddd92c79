// The error-minimising quantiser: codes, scale and bias for the groups of a row.
#pragma once

#include <cstdint>
#include <span>

#include "quant/codes.h"
#include "spec/formats.h"

namespace sluice::quant {

/// The longest group that is fitted. Groups are a multiple of 32 values.
constexpr int kLongestGroup = 512;

/// Fits each group of `group` values x of a row to (mul q + add) s + b (levels_of), s and b in bfloat16,
/// minimising the sum of w (x - ((mul q + add) s + b))^2, and returns that sum over the row. The error is
/// that of the stored s and b.
///
/// `importance` holds the w, finite and not negative, one for each value of the row, or is empty: all 1. A
/// group whose weights are all 0 is fitted as if they were 1 and adds nothing to the sum.
///
/// Method: several clip ranges (shrunk at either end; more of them the fewer levels there are) are tried,
/// the most promising refined by alternating codes for given s, b with the least-squares s, b for given
/// codes. Never worse than rounding between least and largest value. A group that such numbers represent
/// exactly is found to be (lattice.h) and comes back exactly; also a constant, to 16 bits of precision.
///
/// Sums run in 16 lanes that are added in a fixed tree, without fused multiply-adds: results are the same
/// bits on every SIMD target.
///
/// values [n groups * group], finite; codes [the same], one a byte; scales and biases [n groups], bf16 bits.
double fit_row(spec::Format format, int group, std::span<const float> values,
               std::span<const float> importance, std::span<std::uint8_t> codes,
               std::span<std::uint16_t> scales, std::span<std::uint16_t> biases);

/// The Highway targets that fit_row is compiled for.
std::int64_t compiled_targets();

}  // namespace sluice::quant

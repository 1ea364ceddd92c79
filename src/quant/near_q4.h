// Three bits near four: a low-bit fit that starts from what truncating would keep.
#pragma once

#include <cstdint>
#include <span>

namespace sluice::quant {

/// Fits each group to 3 bits near its fit to 4: starts from the scale and bias that fit_row finds for 4 bits
/// without weights, with the codes that truncating leaves, and takes three steps of weighted least squares,
/// each a scale and bias for the codes and then the nearest codes. The error lies between those of truncating
/// and of fit_row for 3 bits (docs/quantisation.md says what that is for). What 3 bits represent exactly
/// comes back exactly.
///
/// Plain loops in double, in one order: results are the same bits on every machine. Arguments and result as
/// for fit_row.
double fit_row_near_q4(int group, std::span<const float> values, std::span<const float> importance,
                       std::span<std::uint8_t> codes, std::span<std::uint16_t> scales,
                       std::span<std::uint16_t> biases);

}  // namespace sluice::quant

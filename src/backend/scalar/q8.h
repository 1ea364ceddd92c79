// Keys and values in 8 bits: rounding, as every backend does it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "backend/backend.h"
#include "base/numbers.h"

namespace sluice::backend::scalar {

/// Rounds kQ8Group numbers; returns their scale, a half (Backend::quantise_q8).
inline std::uint16_t quantise_q8_group(const float* x, std::int8_t* codes) {
  constexpr float kMost = 127;
  constexpr float kLargestHalf = 65504;
  constexpr std::uint16_t kNaN = 0x7e00;
  float most = 0;
  bool finite = true;
  for (std::int64_t i = 0; i < kQ8Group; ++i) {
    finite = finite && std::isfinite(x[i]);
    most = std::max(most, std::abs(x[i]));
  }
  std::fill_n(codes, kQ8Group, std::int8_t{0});
  if (!finite) return kNaN;
  const Half scale = to_half(std::min(most / kMost, kLargestHalf));
  const float by = to_float(scale);
  if (by == 0) return scale.bits;
  for (std::int64_t i = 0; i < kQ8Group; ++i) {
    codes[i] = static_cast<std::int8_t>(std::nearbyint(std::clamp(x[i] / by, -kMost, kMost)));
  }
  return scale.bits;
}

}  // namespace sluice::backend::scalar

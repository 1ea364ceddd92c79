// The bfloat16 numbers nearest to a wanted one, for groups computed in units of a power of two.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "base/numbers.h"

namespace sluice::quant {

/// Scales and biases are bfloat16, while a group of very large or very small values is fitted in units of
/// 2^exponent so that squares neither overflow nor vanish. Everything here is in these units; roundings are
/// those of the stored numbers, which matters where they are subnormal. Never infinite.
class Bf16Grid {
 public:
  /// `limit`: the largest magnitude of a stored number.
  explicit Bf16Grid(int exponent = 0, float limit = kLargest) : exponent_(exponent), limit_(limit) {}

  static constexpr float kLargest = 0x1.fep127F;

  /// Rounded to nearest, ties to even.
  [[nodiscard]] float nearest(double value) const { return from_stored(stored(value)); }
  /// The neighbours of `value`, the one nearer to zero first; twice the same if it is a bfloat16.
  struct Pair {
    float inner, outer;
  };
  [[nodiscard]] Pair around(double value) const {
    const auto bits = std::bit_cast<std::uint32_t>(clamped(value));
    const std::uint32_t inner = bits & 0xffff0000U;
    const float low = std::bit_cast<float>(inner);
    const float high = std::bit_cast<float>(bits == inner ? inner : inner + 0x10000U);
    return {from_stored(low), from_stored(std::fabs(high) > limit_ ? low : high)};
  }
  /// The stored number itself.
  [[nodiscard]] float stored(double value) const {
    const float rounded = to_float(to_bfloat16(clamped(value)));
    if (std::fabs(rounded) <= limit_) return rounded;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(clamped(value)) & 0xffff0000U);
  }

 private:
  [[nodiscard]] float clamped(double value) const {
    if (exponent_ != 0) value = std::ldexp(value, exponent_);
    const auto limit = static_cast<double>(limit_);
    return static_cast<float>(std::clamp(value, -limit, limit));
  }
  [[nodiscard]] float from_stored(float value) const {
    return exponent_ == 0 ? value : std::ldexp(value, -exponent_);
  }

  int exponent_;
  float limit_;
};

}  // namespace sluice::quant

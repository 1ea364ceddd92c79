// Narrow floating-point formats as they lie in files and caches, and their float32 values.
#pragma once

#include <bit>
#include <cstdint>

namespace sluice {

/// bfloat16: the upper half of a float32.
struct BFloat16 {
  std::uint16_t bits = 0;
};

/// IEEE 754 binary16.
struct Half {
  std::uint16_t bits = 0;
};

inline float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

/// Rounds to nearest, ties to even; NaN stays NaN.
inline BFloat16 to_bfloat16(float value) {
  const auto u = std::bit_cast<std::uint32_t>(value);
  if ((u & 0x7fffffffU) > 0x7f800000U) return {static_cast<std::uint16_t>((u >> 16) | 0x40U)};
  return {static_cast<std::uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16)};
}

inline float to_float(Half value) {
  const std::uint32_t sign = (value.bits & 0x8000U) << 16;
  const std::uint32_t exponent = (value.bits >> 10) & 0x1fU;
  const std::uint32_t mantissa = value.bits & 0x3ffU;
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24, exact in float32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
}

/// Rounds to nearest, ties to even; overflow gives infinity.
inline Half to_half(float value) {
  const auto u = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((u >> 16) & 0x8000U);
  const std::uint32_t magnitude = u & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return {static_cast<std::uint16_t>(sign | 0x7e00U)};
  if (magnitude >= 0x477ff000U) return {static_cast<std::uint16_t>(sign | 0x7c00U)};
  if (magnitude < 0x38800000U) {  // below 2^-14: let the float adder round to a multiple of 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return {static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000U))};
  }
  const std::uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
  return {static_cast<std::uint16_t>(sign | ((rounded - 0x38000000U) >> 13))};
}

/// 8-bit float e4m3fn: no infinities, NaN at 0x7f and 0xff, largest 448.
inline float e4m3_to_float(std::uint8_t code) {
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80U) << 24;
  const std::uint32_t exponent = (code >> 3) & 0xfU;
  const std::uint32_t mantissa = code & 0x7U;
  if (exponent == 15 && mantissa == 7) return std::bit_cast<float>(sign | 0x7fc00000U);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-9F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 120U) << 23) | (mantissa << 20));
}

}  // namespace sluice

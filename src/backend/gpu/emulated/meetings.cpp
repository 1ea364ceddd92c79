// What the lanes of a SIMD group compute together.
#include <bit>
#include <cmath>

#include "backend/gpu/emulated/group.h"

namespace sluice::emulated {
namespace {

using Words = std::array<std::uint32_t, kLanes>;
using Floats = std::array<float, kLanes>;

/// As to_float, in a form that compilers make vectors of. A half's exponent is 15 too large where a float's
/// is 127; that of infinities and NaN is the largest of both, and numbers below the least one have 2^-14 too
/// much when it is set.
float float_of_half(std::uint32_t bits) {
  const std::uint32_t exponent = bits & 0x7c00U;
  const std::uint32_t kept = (bits & 0x7fffU) << 13;
  const float small = std::bit_cast<float>(kept + 0x38800000U) - 0x1p-14F;
  const std::uint32_t normal = kept + (exponent == 0x7c00U ? 0x70000000U : 0x38000000U);
  const std::uint32_t number = exponent == 0 ? std::bit_cast<std::uint32_t>(small) : normal;
  return std::bit_cast<float>(number | (bits & 0x8000U) << 16);
}
float float_of_bfloat16(std::uint32_t bits) {
  return std::bit_cast<float>(bits << 16);
}

/// In the order of a butterfly of exclusive ors.
template <class Both>
Words butterfly(const Words& words, const Both& both) {
  auto value = std::bit_cast<Floats>(words);
  for (std::uint32_t mask = kLanes / 2; mask > 0; mask /= 2) {
    const auto before = value;
    for (std::uint32_t l = 0; l < kLanes; ++l) value[l] = both(before[l], before[l ^ mask]);
  }
  return std::bit_cast<Words>(value);
}

template <class Number>
void multiply(const std::array<MmaIn, kLanes>& lanes, const Number& number) {
  constexpr std::uint32_t kWords = 6;  // of a lane: four of a, two of b
  std::array<std::uint32_t, kLanes * kWords> words;
  for (std::uint32_t l = 0; l < kLanes; ++l) {
    for (std::uint32_t i = 0; i < 4; ++i) words[l * kWords + i] = lanes[l].a[i];
    for (std::uint32_t i = 0; i < 2; ++i) words[l * kWords + 4 + i] = lanes[l].b[i];
  }
  std::array<float, kLanes * kWords> low;
  std::array<float, kLanes * kWords> high;
  for (std::uint32_t i = 0; i < words.size(); ++i) {
    low[i] = number(words[i] & 0xffffU);
    high[i] = number(words[i] >> 16);
  }
  std::array<std::array<float, 16>, 16> a;  // [row][input]
  std::array<std::array<float, 8>, 16> b;   // [input][column]
  for (std::uint32_t l = 0; l < kLanes; ++l) {
    for (std::uint32_t i = 0; i < 4; ++i) {
      float* to = &a[l / 4 + i % 2 * 8][l % 4 * 2 + i / 2 * 8];
      to[0] = low[l * kWords + i];
      to[1] = high[l * kWords + i];
    }
    for (std::uint32_t i = 0; i < 2; ++i) {
      const std::uint32_t k = l % 4 * 2 + i * 8;
      b[k][l / 4] = low[l * kWords + 4 + i];
      b[k + 1][l / 4] = high[l * kWords + 4 + i];
    }
  }
  std::array<std::array<float, 8>, 16> c{};
  for (std::uint32_t row = 0; row < 16; ++row) {
    for (std::uint32_t k = 0; k < 16; ++k) {
      for (std::uint32_t column = 0; column < 8; ++column) c[row][column] += a[row][k] * b[k][column];
    }
  }
  for (std::uint32_t l = 0; l < kLanes; ++l) {
    for (std::uint32_t i = 0; i < 4; ++i) lanes[l].c[i] += c[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2];
  }
}

}  // namespace

void finish_meeting(Simd& simd) {
  switch (simd.meeting) {
    case Meeting::kBarrier:
    case Meeting::kSimdBarrier:
      return;
    case Meeting::kShuffle: {
      const Words value = simd.value;
      for (std::uint32_t l = 0; l < kLanes; ++l) simd.value[l] = value[simd.from[l] % kLanes];
      return;
    }
    case Meeting::kBallot: {
      std::uint32_t bits = 0;
      for (std::uint32_t l = 0; l < kLanes; ++l) bits |= simd.value[l] << l;
      simd.value.fill(bits);
      return;
    }
    case Meeting::kSum:
      simd.value = butterfly(simd.value, [](float a, float b) { return a + b; });
      return;
    case Meeting::kMax:
      simd.value = butterfly(simd.value, [](float a, float b) { return std::fmax(a, b); });
      return;
    case Meeting::kMmaF16:
      multiply(simd.mma, [](std::uint32_t bits) { return float_of_half(bits); });
      return;
    case Meeting::kMmaBf16:
      multiply(simd.mma, [](std::uint32_t bits) { return float_of_bfloat16(bits); });
      return;
  }
}

}  // namespace sluice::emulated

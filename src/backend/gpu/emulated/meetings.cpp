// What the lanes of a SIMD group compute together.
#include <bit>
#include <cmath>
#include <vector>

#include "backend/gpu/emulated/group.h"
#include "base/numbers.h"

namespace sluice::emulated {
namespace {

using Words = std::array<std::uint32_t, kLanes>;
using Floats = std::array<float, kLanes>;

/// Every half as a float.
const float* half_table() {
  static const auto table = [] {
    std::vector<float> values(1U << 16);
    for (std::uint32_t i = 0; i < values.size(); ++i)
      values[i] = to_float(Half{static_cast<std::uint16_t>(i)});
    return values;
  }();
  return table.data();
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
  std::array<std::array<float, 16>, 16> a;  // [row][input]
  std::array<std::array<float, 8>, 16> b;   // [input][column]
  for (std::uint32_t l = 0; l < kLanes; ++l) {
    const MmaIn& in = lanes[l];
    for (std::uint32_t i = 0; i < 4; ++i) {
      float* to = &a[l / 4 + i % 2 * 8][l % 4 * 2 + i / 2 * 8];
      to[0] = number(in.a[i] & 0xffffU);
      to[1] = number(in.a[i] >> 16);
    }
    for (std::uint32_t i = 0; i < 2; ++i) {
      const std::uint32_t k = l % 4 * 2 + i * 8;
      b[k][l / 4] = number(in.b[i] & 0xffffU);
      b[k + 1][l / 4] = number(in.b[i] >> 16);
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
      multiply(simd.mma, [table = half_table()](std::uint32_t bits) { return table[bits]; });
      return;
    case Meeting::kMmaBf16:
      multiply(simd.mma, [](std::uint32_t bits) { return std::bit_cast<float>(bits << 16); });
      return;
  }
}

}  // namespace sluice::emulated

#include "quant/fit.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <limits>

#include "base/numbers.h"
#include "base/simd_targets.h"
#include "quant/lattice.h"
#include "quant/starts.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/fit.cpp"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"
#include "quant/fit_sums-inl.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::quant::HWY_NAMESPACE {
namespace {

/// The best of what was tried on a group so far.
struct Best {
  Affine affine;
  double error = std::numeric_limits<double>::infinity();
  HWY_INLINE void take(Affine a, const Sums& sums) {
    if (!(sums.e2 < error)) return;
    affine = a;
    error = sums.e2;
  }
};

/// A start worth refining.
struct Promising {
  Affine affine;
  Sums sums;
  double least = std::numeric_limits<double>::infinity();
};

/// Keeps the list in ascending order of `least`, without its last.
template <std::size_t N>
HWY_INLINE void insert(std::array<Promising, N>& list, const Promising& one) {
  if (!(one.least < list.back().least)) return;
  std::size_t at = N - 1;
  for (; at > 0 && one.least < list[at - 1].least; --at) list[at] = list[at - 1];
  list[at] = one;
}

template <spec::Format kFormat, bool kWeighted>
Best search(const Group& group, float low, float high, const Grids& grids, bool scaled) {
  constexpr Levels kLevels = levels_of(kFormat);
  constexpr Effort kEffort = effort_of(kFormat, kWeighted);
  Best best;
  // What is already a lattice needs no search; constants are one of a single point.
  const std::span<const float> values(group.values, group.count);
  const auto lattice = low == high ? std::optional(constant_start(low, kLevels, grids))
                                   : find_lattice(values, low, high, kLevels, grids);
  if (lattice) {
    best.take(*lattice, sums_of<kFormat, kWeighted>(group, *lattice));
    if (best.error == 0 || low == high) return best;
  }
  Starts<kFormat, kWeighted> starts(low, high, grids, scaled);
  std::array<Promising, kEffort.refined> promising;
  for (std::size_t i = 0; i < starts.count(); ++i) {
    Promising one;
    one.affine = starts[i];
    one.sums = sums_of<kFormat, kWeighted>(group, one.affine);
    best.take(one.affine, one.sums);
    one.least = least_error(one.sums, group.weight);
    insert(promising, one);
  }
  for (Promising& one : promising) {
    for (int step = 0; step < kEffort.steps; ++step) {
      const Affine next = refit(one.sums, group.weight, one.affine, grids);
      if (next.scale == one.affine.scale && next.bias == one.affine.bias) break;
      const Sums sums = sums_of<kFormat, kWeighted>(group, next);
      best.take(next, sums);
      if (!(sums.e2 < one.sums.e2) && step > 0) break;
      one.affine = next;
      one.sums = sums;
    }
  }
  return best;
}

// Magnitudes that need no scaling: the squares of their rounding errors are normal numbers.
constexpr float kSmallest = 0x1p-40F;
constexpr float kLargest = 0x1p40F;

/// Writes values * 2^-exponent, in two steps as the factor itself may not be a float.
void scale_to(std::span<const float> values, int exponent, float* to) {
  const float first = std::ldexp(1.0F, -(exponent / 2));
  const float second = std::ldexp(1.0F, exponent / 2 - exponent);
  for (std::size_t i = 0; i < values.size(); ++i) to[i] = values[i] * first * second;
}

template <spec::Format kFormat, bool kWeighted>
double fit_group(std::span<const float> values, std::span<const float> importance, std::uint8_t* codes,
                 std::uint16_t& scale, std::uint16_t& bias) {
  constexpr Levels kLevels = levels_of(kFormat);
  alignas(64) float scaled[kLongestGroup];
  alignas(64) float weights[kLongestGroup];
  Group group{values.data(), nullptr, values.size(), static_cast<double>(values.size())};
  float low, high;
  range_of(group.values, group.count, low, high);
  const float largest = std::max(-low, high);
  int exponent = 0;
  if (largest > kLargest || (largest < kSmallest && largest > 0)) {
    std::frexp(largest, &exponent);
    scale_to(values, exponent, scaled);
    group.values = scaled;
    low = std::ldexp(low, -exponent);
    high = std::ldexp(high, -exponent);
  }
  low += 0.0F;  // targets differ in which zero is less
  high += 0.0F;
  // No level of an unused code may overflow.
  const float most_scale = Bf16Grid::kLargest / (kLevels.mul * static_cast<float>(kLevels.top) + kLevels.add);
  const Grids grids{Bf16Grid(exponent, most_scale), Bf16Grid(exponent)};

  int weight_exponent = 0;
  float least_weight = 1, most_weight = 1;
  if constexpr (kWeighted) {
    range_of(importance.data(), importance.size(), least_weight, most_weight);
    if (most_weight > least_weight) {
      std::frexp(most_weight, &weight_exponent);
      scale_to(importance, weight_exponent, weights);
      group.weights = weights;
      group.weight = 0;
      for (std::size_t i = 0; i < group.count; ++i) group.weight += static_cast<double>(weights[i]);
    }
  }
  // Where weights are all the same, 0 perhaps, the group is fitted without them.
  const bool weighted = kWeighted && most_weight > least_weight;
  Best best = weighted ? search<kFormat, kWeighted>(group, low, high, grids, exponent != 0)
                       : search<kFormat, false>(group, low, high, grids, exponent != 0);
  if (weighted && least_weight == 0 && best.error > 0) {
    // Values without weight need not be within the range of codes.
    float inner_low = high, inner_high = low;
    for (std::size_t i = 0; i < group.count; ++i) {
      if (weights[i] == 0) continue;
      inner_low = std::min(inner_low, group.values[i]);
      inner_high = std::max(inner_high, group.values[i]);
    }
    inner_low += 0.0F;
    inner_high += 0.0F;
    if (inner_low > low || inner_high < high) {
      const Best inner = search<kFormat, kWeighted>(group, inner_low, inner_high, grids, exponent != 0);
      if (inner.error < best.error) best = inner;
    }
  }
  write_codes<kFormat>(group, best.affine, codes);
  scale = to_bfloat16(grids.scale.stored(static_cast<double>(best.affine.scale))).bits;
  bias = to_bfloat16(grids.bias.stored(static_cast<double>(best.affine.bias))).bits;
  const double error = std::ldexp(best.error, 2 * exponent + weight_exponent);
  return weighted ? error : error * static_cast<double>(most_weight);
}

template <spec::Format kFormat>
double fit_all(std::size_t group, std::span<const float> values, std::span<const float> importance,
               std::uint8_t* codes, std::uint16_t* scales, std::uint16_t* biases) {
  double error = 0;
  for (std::size_t g = 0, at = 0; at < values.size(); ++g, at += group) {
    error += importance.empty()
                 ? fit_group<kFormat, false>(values.subspan(at, group), {}, codes + at, scales[g], biases[g])
                 : fit_group<kFormat, true>(values.subspan(at, group), importance.subspan(at, group),
                                            codes + at, scales[g], biases[g]);
  }
  return error;
}

double fit_row(spec::Format format, std::size_t group, std::span<const float> values,
               std::span<const float> importance, std::uint8_t* codes, std::uint16_t* scales,
               std::uint16_t* biases) {
  switch (format) {
    case spec::Format::kQ8:
      return fit_all<spec::Format::kQ8>(group, values, importance, codes, scales, biases);
    case spec::Format::kQ4:
      return fit_all<spec::Format::kQ4>(group, values, importance, codes, scales, biases);
    case spec::Format::kQ3:
      return fit_all<spec::Format::kQ3>(group, values, importance, codes, scales, biases);
    case spec::Format::kQ2:
      return fit_all<spec::Format::kQ2>(group, values, importance, codes, scales, biases);
    case spec::Format::kF32:
    case spec::Format::kBf16:
      assert(false && "float formats have no codes");
  }
  return 0;
}

}  // namespace
}  // namespace sluice::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::quant {

HWY_EXPORT(fit_row);

double fit_row(spec::Format format, int group, std::span<const float> values,
               std::span<const float> importance, std::span<std::uint8_t> codes,
               std::span<std::uint16_t> scales, std::span<std::uint16_t> biases) {
  const auto n = static_cast<std::size_t>(group);
  assert(group > 0 && group % 32 == 0 && group <= kLongestGroup && values.size() % n == 0);
  assert(importance.empty() || importance.size() == values.size());
  assert(codes.size() == values.size() && scales.size() == values.size() / n &&
         biases.size() == scales.size());
  return HWY_DYNAMIC_DISPATCH(fit_row)(format, n, values, importance, codes.data(), scales.data(),
                                       biases.data());
}

std::int64_t compiled_targets() {
  return HWY_TARGETS;
}

}  // namespace sluice::quant
#endif  // HWY_ONCE

#include "quant/lattice.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace sluice::quant {
namespace {

// Combinations of subdivision, orientation and first code that are looked at. Only groups with very few
// different values have more.
constexpr int kMostTries = 4096;

// Of positive numbers whose quotient is small: how far a is from the nearest multiple of b.
double distance_to_multiple(double a, double b) {
  return std::fabs(a - b * static_cast<double>(static_cast<std::int64_t>(a / b + 0.5)));
}

// The common step of the values above `low`, or 0 if it would be under `least`.
double common_step(std::span<const float> values, double low, double range, double least) {
  const double tolerance = least / 16;
  double step = range;
  for (const float value : values) {
    double rest = distance_to_multiple(static_cast<double>(value) - low, step);
    while (rest > tolerance) {
      const double next = distance_to_multiple(step, rest);
      step = rest;
      rest = next;
      if (step < least) return 0;
    }
  }
  return step;
}

}  // namespace

std::optional<Affine> find_lattice(std::span<const float> values, float low, float high, const Levels& levels,
                                   const Grids& grids) {
  const auto first = static_cast<double>(low), last = static_cast<double>(high);
  const double range = last - first;
  const double step = common_step(values, first, range, range / (levels.top + 0.5));
  if (step == 0) return std::nullopt;
  const auto spanned = static_cast<int>(std::nearbyint(range / step));
  const auto mul = static_cast<double>(levels.mul), add = static_cast<double>(levels.add);

  // The true step may be a part of the common one, and the lowest value may have any code that leaves room
  // above. What tells is that scale and bias are bfloat16 numbers, up to the rounding of the values.
  const double exact = std::max(std::fabs(first), std::fabs(last)) * 0x1p-23;
  std::optional<Affine> best;
  double best_miss = 0;
  int tries = 0;
  for (int parts = 1; spanned * parts <= levels.top; ++parts) {
    for (const double sign : {1.0, -1.0}) {
      const float scale = grids.scale.nearest(sign * range / (spanned * parts) / mul);
      const double scale_miss = std::fabs(static_cast<double>(scale) * mul * spanned * parts - sign * range);
      for (int q = 0; q + spanned * parts <= levels.top; ++q) {
        const double wanted = (sign > 0 ? first : last) - (mul * q + add) * static_cast<double>(scale);
        const float bias = grids.bias.nearest(wanted);
        const double miss = scale_miss + std::fabs(static_cast<double>(bias) - wanted);
        if (!best || miss < best_miss) {
          best = Affine{scale, bias};
          best_miss = miss;
          if (miss <= exact) return best;
        }
        if (++tries == kMostTries) return best;
      }
    }
  }
  return best;
}

}  // namespace sluice::quant

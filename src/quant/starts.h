// Where the search for a group's scale and bias starts, and how far it goes.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "quant/codes.h"
#include "quant/fit_step.h"

namespace sluice::quant {

/// How hard a format's search tries, chosen by measuring: on normal values twice the starts gain less than
/// 0.2 % of the error. With 256 levels the plain range is all but optimal.
struct Effort {
  int shrinks = 1;          // clip ranges tried at either end, so shrinks^2 in all
  float first = 0;          // the first of them takes this part of the range away, the next each a
  float each = 0;           // further `each`
  std::size_t refined = 1;  // starts that are refined
  int steps = 1;            // steps of refining, at most
};

/// `weighted`: importances differ, and values at the ends of the range may be worth clipping further in.
constexpr Effort effort_of(spec::Format format, bool weighted) {
  switch (format) {
    case spec::Format::kQ8:
      return {1, 0, 0, 2, 2};
    case spec::Format::kQ4:
      return weighted ? Effort{5, -0.02F, 0.04F, 3, 3} : Effort{4, -0.02F, 0.025F, 2, 3};
    case spec::Format::kQ3:
      return {6, -0.03F, weighted ? 0.06F : 0.04F, 4, 5};
    case spec::Format::kQ2:
      return {7, 0.03F, 0.06F, 6, 5};
    case spec::Format::kF32:
    case spec::Format::kBf16:
      break;
  }
  return {};
}

/// The value as near to zero codes as 16 bits allow: a bias, and a scale that adds what its rounding lost.
inline Affine constant_start(float value, const Levels& levels, const Grids& grids) {
  const float bias = grids.bias.nearest(static_cast<double>(value));
  const double rest = static_cast<double>(value) - static_cast<double>(bias);
  const auto level = static_cast<double>(levels.add > 0 ? levels.add : levels.mul + levels.add);
  return {grids.scale.nearest(rest / level), bias};
}

/// The starts for values between `low` and `high`, low < high.
template <spec::Format kFormat, bool kWeighted>
class Starts {
 public:
  /// `scaled`: values are in units of a power of two (bf16_grid.h).
  Starts(float low, float high, const Grids& grids, bool scaled) : grids_(grids) {
    const auto first = static_cast<double>(low), last = static_cast<double>(high);
    add_range(first, last);  // plain rounding between least and largest value
    if constexpr (kFormat == spec::Format::kQ4 || kFormat == spec::Format::kQ8) add_mlx(low, high, scaled);
    if constexpr (kFormat == spec::Format::kQ8) add_covering(first, last);
    const double range = last - first;
    for (int i = 0; i < kEffort.shrinks; ++i) {
      for (int j = 0; j < kEffort.shrinks; ++j) {
        const auto a = static_cast<double>(kEffort.first + static_cast<float>(i) * kEffort.each);
        const auto b = static_cast<double>(kEffort.first + static_cast<float>(j) * kEffort.each);
        if (a != 0 || b != 0) add_range(first + a * range, last - b * range);
      }
    }
  }

  [[nodiscard]] std::size_t count() const { return count_; }
  [[nodiscard]] Affine operator[](std::size_t i) const { return starts_[i]; }

 private:
  static constexpr Effort kEffort = effort_of(kFormat, kWeighted);
  static constexpr Levels kLevels = levels_of(kFormat);
  static constexpr std::size_t kMost = static_cast<std::size_t>(kEffort.shrinks * kEffort.shrinks) + 4;

  /// The lowest code stands for `first`, the highest for `last`.
  void add_range(double first, double last) {
    constexpr double kSteps = 1.0 / (static_cast<double>(kLevels.mul) * kLevels.top);
    const float scale = grids_.scale.nearest((last - first) * kSteps);
    starts_[count_++] = {
        scale, grids_.bias.nearest(first - static_cast<double>(kLevels.add) * static_cast<double>(scale))};
  }

  /// The usual affine quantiser of MLX: the end further from zero exact, zero a multiple of the scale.
  void add_mlx(float low, float high, bool scaled) {
    const auto top = static_cast<float>(kLevels.top);
    float scale = (high - low) / top;
    if (!scaled) scale = std::max(scale, 1e-7F);
    const bool from_low = std::fabs(low) > std::fabs(high);
    if (!from_low) scale = -scale;
    const float edge = from_low ? low : high;
    float bias = 0;
    if (const float q = std::nearbyint(edge / scale); q != 0) {
      scale = edge / q;
      bias = edge;
    }
    starts_[count_++] = {grids_.scale.nearest(static_cast<double>(scale)),
                         grids_.bias.nearest(static_cast<double>(bias))};
  }

  /// From either end, a bias outside the range and a scale that reaches the other end. With many levels the
  /// rounding of a bias is a good part of a step.
  void add_covering(double first, double last) {
    const auto low = grids_.bias.around(first), high = grids_.bias.around(last);
    const double bottom = static_cast<double>(std::min(low.inner, low.outer));
    const double ceiling = static_cast<double>(std::max(high.inner, high.outer));
    const auto up = grids_.scale.around((last - bottom) / kLevels.top);
    const auto down = grids_.scale.around((first - ceiling) / kLevels.top);
    starts_[count_++] = {up.outer, static_cast<float>(bottom)};
    starts_[count_++] = {down.outer, static_cast<float>(ceiling)};
  }

  Grids grids_;
  std::array<Affine, kMost> starts_;
  std::size_t count_ = 0;
};

}  // namespace sluice::quant

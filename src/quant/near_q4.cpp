#include "quant/near_q4.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "base/numbers.h"
#include "quant/bf16_grid.h"
#include "quant/fit.h"
#include "quant/fit_step.h"
#include "quant/lattice.h"

namespace sluice::quant {
namespace {

using spec::Format;

constexpr int kSteps = 3;
constexpr Levels kLevels = levels_of(Format::kQ3);

struct Group {
  std::span<const float> values;
  std::span<const float> importance;  // or empty
  std::span<std::uint8_t> codes;

  [[nodiscard]] double weight(std::size_t i) const {
    return importance.empty() ? 1.0 : static_cast<double>(importance[i]);
  }
};

double level_of(std::uint8_t code) {
  return static_cast<double>(kLevels.mul) * code + static_cast<double>(kLevels.add);
}

/// The nearest scale and bias that are stored to the least squares for the codes; false where one code has
/// all the weight.
bool solve(const Group& group, const Grids& grids, Affine& affine) {
  double n = 0, u = 0, u2 = 0, x = 0, xu = 0;
  for (std::size_t i = 0; i < group.values.size(); ++i) {
    const double w = group.weight(i), level = level_of(group.codes[i]);
    const auto value = static_cast<double>(group.values[i]);
    n += w;
    u += w * level;
    u2 += w * level * level;
    x += w * value;
    xu += w * level * value;
  }
  const double det = n * u2 - u * u;
  if (det <= 0) return false;
  const double scale = (n * xu - u * x) / det;
  affine = {grids.scale.nearest(scale), grids.bias.nearest((x - scale * u) / n)};
  return true;
}

void take_nearest_codes(const Group& group, const Affine& affine) {
  if (affine.scale == 0) return;
  const auto scale = static_cast<double>(affine.scale), bias = static_cast<double>(affine.bias);
  for (std::size_t i = 0; i < group.values.size(); ++i) {
    const double level = (static_cast<double>(group.values[i]) - bias) / scale;
    const double code =
        std::nearbyint((level - static_cast<double>(kLevels.add)) / static_cast<double>(kLevels.mul));
    group.codes[i] = static_cast<std::uint8_t>(std::clamp(code, 0.0, static_cast<double>(kLevels.top)));
  }
}

double error_of(const Group& group, const Affine& affine) {
  double error = 0;
  for (std::size_t i = 0; i < group.values.size(); ++i) {
    const double value =
        level_of(group.codes[i]) * static_cast<double>(affine.scale) + static_cast<double>(affine.bias);
    const double miss = static_cast<double>(group.values[i]) - value;
    error += group.weight(i) * miss * miss;
  }
  return error;
}

double fit_group(const Group& group, std::uint16_t& scale, std::uint16_t& bias) {
  const auto size = static_cast<int>(group.values.size());
  // No level of an unused code may overflow.
  const float most_scale = Bf16Grid::kLargest / (kLevels.mul * static_cast<float>(kLevels.top) + kLevels.add);
  const Grids grids{Bf16Grid(0, most_scale), Bf16Grid(0)};
  const auto [low, high] = std::minmax_element(group.values.begin(), group.values.end());
  if (*low == *high || find_lattice(group.values, *low, *high, kLevels, grids)) {
    return fit_row(Format::kQ3, size, group.values, group.importance, group.codes, {&scale, 1}, {&bias, 1});
  }
  (void)fit_row(Format::kQ4, size, group.values, {}, group.codes, {&scale, 1}, {&bias, 1});
  for (std::uint8_t& code : group.codes) code = truncate_code(Format::kQ3, code);
  Affine affine{to_float(BFloat16{scale}), to_float(BFloat16{bias})};
  for (int step = 0; step < kSteps && solve(group, grids, affine); ++step) take_nearest_codes(group, affine);
  scale = to_bfloat16(affine.scale).bits;
  bias = to_bfloat16(affine.bias).bits;
  return error_of(group, affine);
}

}  // namespace

double fit_row_near_q4(int group, std::span<const float> values, std::span<const float> importance,
                       std::span<std::uint8_t> codes, std::span<std::uint16_t> scales,
                       std::span<std::uint16_t> biases) {
  const auto n = static_cast<std::size_t>(group);
  assert(group > 0 && group % 32 == 0 && group <= kLongestGroup && values.size() % n == 0);
  assert(importance.empty() || importance.size() == values.size());
  assert(codes.size() == values.size() && scales.size() == values.size() / n &&
         biases.size() == scales.size());
  double error = 0;
  for (std::size_t g = 0, at = 0; at < values.size(); ++g, at += n) {
    const auto weights = importance.empty() ? importance : importance.subspan(at, n);
    error += fit_group({values.subspan(at, n), weights, codes.subspan(at, n)}, scales[g], biases[g]);
  }
  return error;
}

}  // namespace sluice::quant

// The layouts and the plain quantiser written out as simply as possible, in double, and numbers to try them
// on.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/numbers.h"
#include "quant/codes.h"
#include "quant/fit.h"
#include "quant/near_q4.h"
#include "spec/formats.h"

namespace sluice::quant {

using spec::Format;

constexpr Format kQuantised[] = {Format::kQ8, Format::kQ4, Format::kQ3, Format::kQ2};

inline std::string format_name(Format format) {
  return "Q" + std::to_string(spec::bits_of(format));
}

/// Code `index` of a packed row, bit by bit as operations.md says.
inline unsigned reference_code(Format format, std::span<const std::byte> row, std::size_t index) {
  const auto bit = [&](std::size_t at) { return std::to_integer<unsigned>(row[at / 8]) >> (at % 8) & 1U; };
  if (format == Format::kQ8) return std::to_integer<unsigned>(row[index]);
  if (format == Format::kQ4) return std::to_integer<unsigned>(row[index / 2]) >> (4 * (index % 2)) & 15U;
  const std::size_t c = index % 32, t = c / 16, r = c % 16, i = r / 2, byte = i % 4;
  const std::size_t p = i / 4 + (r % 2 == 1 ? 2 : 0);
  const std::size_t words = format == Format::kQ3 ? 3 : 2;
  const std::size_t chunk = index / 32 * words * 32;
  const std::size_t upper = chunk + 32 * t + 8 * byte + 2 * p;
  const unsigned code = bit(upper) + 2 * bit(upper + 1);
  return format == Format::kQ2 ? code : 2 * code + bit(chunk + 64 + 8 * byte + 4 * t + p);
}

/// (2q + 0.5) s + b and so on, as backends compute it.
inline float reference_value(Format format, unsigned code, float scale, float bias) {
  const auto q = static_cast<float>(code);
  if (format == Format::kQ3) return (2 * q + 0.5F) * scale + bias;
  if (format == Format::kQ2) return (4 * q + 1.5F) * scale + bias;
  return q * scale + bias;
}

/// A quantised row as fit_row gives it, a byte a code.
struct Fitted {
  std::vector<std::uint8_t> codes;
  std::vector<std::uint16_t> scales, biases;
  double error = 0;  // as reported
  bool operator==(const Fitted&) const = default;
};

inline Fitted fit(Format format, int group, const std::vector<float>& values,
                  const std::vector<float>& importance = {}) {
  Fitted out;
  out.codes.resize(values.size());
  out.scales.resize(values.size() / static_cast<std::size_t>(group));
  out.biases.resize(out.scales.size());
  out.error = fit_row(format, group, values, importance, out.codes, out.scales, out.biases);
  return out;
}

inline Fitted fit_near_q4(int group, const std::vector<float>& values,
                          const std::vector<float>& importance = {}) {
  Fitted out;
  out.codes.resize(values.size());
  out.scales.resize(values.size() / static_cast<std::size_t>(group));
  out.biases.resize(out.scales.size());
  out.error = fit_row_near_q4(group, values, importance, out.codes, out.scales, out.biases);
  return out;
}

inline std::vector<float> values_of(Format format, int group, const Fitted& row) {
  std::vector<float> out;
  for (std::size_t i = 0; i < row.codes.size(); ++i) {
    const std::size_t g = i / static_cast<std::size_t>(group);
    out.push_back(reference_value(format, row.codes[i], to_float(BFloat16{row.scales[g]}),
                                  to_float(BFloat16{row.biases[g]})));
  }
  return out;
}

/// Sum of w (x - y)^2 in double; w of 1 if there are none.
inline double squared_error(std::span<const float> x, std::span<const float> y,
                            std::span<const float> w = {}) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double miss = static_cast<double>(x[i]) - static_cast<double>(y[i]);
    sum += miss * miss * (w.empty() ? 1.0 : static_cast<double>(w[i]));
  }
  return sum;
}

/// Plain rounding between least and largest value of each group, with the scale and bias as stored.
inline std::vector<float> min_max_values(Format format, int group, const std::vector<float>& values) {
  const float top = static_cast<float>((1 << spec::bits_of(format)) - 1);
  const float mul = format == Format::kQ3 ? 2.0F : format == Format::kQ2 ? 4.0F : 1.0F;
  const float add = format == Format::kQ3 ? 0.5F : format == Format::kQ2 ? 1.5F : 0.0F;
  std::vector<float> out;
  for (std::size_t at = 0; at < values.size(); at += static_cast<std::size_t>(group)) {
    const auto from = values.begin() + static_cast<std::ptrdiff_t>(at);
    const auto [low, high] = std::minmax_element(from, from + group);
    const float scale = to_float(to_bfloat16((*high - *low) / (top * mul)));
    const float bias = to_float(to_bfloat16(*low - add * scale));
    for (int i = 0; i < group; ++i) {
      const double t = scale == 0 ? 0
                                  : (static_cast<double>(from[i]) - static_cast<double>(bias) -
                                     static_cast<double>(add) * static_cast<double>(scale)) /
                                        (static_cast<double>(mul) * static_cast<double>(scale));
      const double q = std::clamp(std::nearbyint(t), 0.0, static_cast<double>(top));
      out.push_back(reference_value(format, static_cast<unsigned>(q), scale, bias));
    }
  }
  return out;
}

/// Values as weights have them, and worse.
enum class Kind { kNormal, kLaplace, kUniform, kOutliers, kBfloat16, kOffset, kFewValues };

constexpr Kind kKinds[] = {Kind::kNormal,   Kind::kLaplace, Kind::kUniform,  Kind::kOutliers,
                           Kind::kBfloat16, Kind::kOffset,  Kind::kFewValues};

inline std::ostream& operator<<(std::ostream& out, Kind kind) {
  constexpr const char* kNames[] = {"normal",   "Laplace", "uniform",   "outliers",
                                    "bfloat16", "offset",  "few values"};
  return out << kNames[static_cast<int>(kind)];
}

inline std::vector<float> random_values(Kind kind, std::size_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal(0, 0.02F);
  std::exponential_distribution<float> tail(50);
  std::uniform_real_distribution<float> uniform(-0.05F, 0.08F);
  std::vector<float> out(count);
  for (float& v : out) {
    const bool coin = engine() % 2 == 0;
    v = normal(engine);
    if (kind == Kind::kLaplace) v = coin ? tail(engine) : -tail(engine);
    if (kind == Kind::kUniform) v = uniform(engine);
    if (kind == Kind::kOutliers && engine() % 50 == 0) v *= 40;
    if (kind == Kind::kBfloat16) v = to_float(to_bfloat16(v));
    if (kind == Kind::kOffset) v += 1;
    if (kind == Kind::kFewValues) v = static_cast<float>(engine() % 5) * 0.37F - 0.5F;
  }
  return out;
}

/// Importances as activations have them: positive, over some orders of magnitude, some zero.
inline std::vector<float> random_importance(std::size_t count, unsigned seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(count);
  for (float& v : out) v = engine() % 9 == 0 ? 0.0F : std::exp(2 * normal(engine));
  return out;
}

}  // namespace sluice::quant

#include "quant/feedback.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>

#include "base/numbers.h"
#include "base/simd_targets.h"
#include "quant/codes.h"
#include "quant/fit.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "quant/feedback.cpp"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"

#ifndef SLUICE_QUANT_FEEDBACK_ONCE
#define SLUICE_QUANT_FEEDBACK_ONCE
namespace sluice::quant {
/// Rows that go from left to right together: lanes.
constexpr std::size_t kLaneRows = 16;
}  // namespace sluice::quant
#endif

HWY_BEFORE_NAMESPACE();
namespace sluice::quant::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using D = hn::CappedTag<float, kLaneRows>;
constexpr std::size_t kVecs = kLaneRows / hn::MaxLanes(D());

/// targets[n][lane] += sum over j of columns[n][j] * errors[j][lane], j ascending.
template <std::size_t kColumns>
HWY_INLINE void pull_some(const float* const* columns, const float* errors, std::size_t count,
                          float* targets) {
  const D d;
  constexpr std::size_t kLanes = hn::MaxLanes(D());
  hn::Vec<D> sum[kColumns][kVecs];
  for (std::size_t n = 0; n < kColumns; ++n) {
    for (std::size_t i = 0; i < kVecs; ++i) sum[n][i] = hn::LoadU(d, targets + n * kLaneRows + i * kLanes);
  }
  for (std::size_t j = 0; j < count; ++j) {
    for (std::size_t i = 0; i < kVecs; ++i) {
      const auto e = hn::LoadU(d, errors + j * kLaneRows + i * kLanes);
      for (std::size_t n = 0; n < kColumns; ++n) {
        sum[n][i] = hn::Add(sum[n][i], hn::Mul(hn::Set(d, columns[n][j]), e));
      }
    }
  }
  for (std::size_t n = 0; n < kColumns; ++n) {
    for (std::size_t i = 0; i < kVecs; ++i) hn::StoreU(sum[n][i], d, targets + n * kLaneRows + i * kLanes);
  }
}

void pull(const float* const* columns, std::size_t width, const float* errors, std::size_t count,
          float* targets) {
  std::size_t n = 0;
  for (; n + 4 <= width; n += 4) pull_some<4>(columns + n, errors, count, targets + n * kLaneRows);
  for (; n < width; ++n) pull_some<1>(columns + n, errors, count, targets + n * kLaneRows);
}

}  // namespace
}  // namespace sluice::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::quant {

HWY_EXPORT(pull);

namespace {

std::size_t at(std::size_t row, std::size_t column) {
  return row * (row + 1) / 2 + column;
}

float from_bits(std::uint16_t bits) {
  return to_float(BFloat16{bits});
}

/// Some rows of a matrix, going from left to right.
class Strip {
 public:
  Strip(const MatrixShape& shape, std::span<const float> sizes, const InputFactor& factor)
      : shape_(shape),
        levels_(levels_of(shape.format)),
        sizes_(sizes),
        factor_(factor),
        errors_(static_cast<std::size_t>(shape.in) * kLaneRows),
        targets_(static_cast<std::size_t>(shape.group) * kLaneRows),
        values_(static_cast<std::size_t>(shape.group)),
        spare_(values_.size()),
        importance_(static_cast<std::size_t>(shape.in)) {
    const auto left = factor.left();
    for (std::size_t k = 0; k < importance_.size(); ++k) importance_[k] = sizes[k] * sizes[k] * left[k];
    codes_.resize(kLaneRows * importance_.size());
    scales_.resize(kLaneRows * static_cast<std::size_t>(shape.groups()));
    biases_.resize(scales_.size());
  }

  /// Codes rows of `values` [rows][in] and returns their error.
  double code(std::span<const float> values, std::size_t rows) {
    values_in_ = values;
    rows_ = rows;
    double error = 0;
    for (std::size_t g = 0; g < static_cast<std::size_t>(shape_.groups()); ++g) error += code_group(g);
    return error;
  }
  [[nodiscard]] std::span<const std::uint8_t> codes(std::size_t row) const {
    return std::span(codes_).subspan(row * importance_.size(), importance_.size());
  }
  [[nodiscard]] std::span<const std::uint16_t> scales(std::size_t row) const { return side(scales_, row); }
  [[nodiscard]] std::span<const std::uint16_t> biases(std::size_t row) const { return side(biases_, row); }

 private:
  [[nodiscard]] std::span<const std::uint16_t> side(const std::vector<std::uint16_t>& all,
                                                    std::size_t row) const {
    const auto groups = static_cast<std::size_t>(shape_.groups());
    return std::span(all).subspan(row * groups, groups);
  }

  double code_group(std::size_t g) {
    const auto in = static_cast<std::size_t>(shape_.in), width = static_cast<std::size_t>(shape_.group);
    const std::size_t first = g * width;
    // What the errors of earlier groups ask of this one.
    std::fill(targets_.begin(), targets_.end(), 0.0F);
    std::vector<const float*> columns(width);
    for (std::size_t i = 0; i < width; ++i)
      columns[i] = factor_.column(static_cast<std::int64_t>(first + i)).data();
    HWY_DYNAMIC_DISPATCH(pull)(columns.data(), width, errors_.data(), first, targets_.data());
    for (const float*& column : columns) column += first;
    float scale[kLaneRows] = {}, bias[kLaneRows] = {};
    for (std::size_t r = 0; r < rows_; ++r) {
      for (std::size_t i = 0; i < width; ++i) {
        const float size = sizes_[first + i];
        values_[i] = values_in_[r * in + first + i] + (size > 0 ? targets_[i * kLaneRows + r] / size : 0.0F);
      }
      std::uint16_t* s = scales_.data() + r * static_cast<std::size_t>(shape_.groups()) + g;
      std::uint16_t* b = biases_.data() + r * static_cast<std::size_t>(shape_.groups()) + g;
      fit_row(shape_.format, shape_.group, values_, std::span(importance_).subspan(first, width), spare_,
              std::span(s, 1), std::span(b, 1));
      scale[r] = from_bits(*s);
      bias[r] = from_bits(*b);
    }
    double error = 0;
    for (std::size_t i = 0; i < width; ++i) {
      const std::size_t k = first + i;
      float* target = targets_.data() + i * kLaneRows;
      HWY_DYNAMIC_DISPATCH(pull)(columns.data() + i, 1, errors_.data() + first * kLaneRows, i, target);
      const float size = sizes_[k];
      for (std::size_t r = 0; r < rows_; ++r) {
        const float original = values_in_[r * in + k];
        const float wanted = original + (size > 0 ? target[r] / size : 0.0F);
        const float step = levels_.mul * scale[r];
        const float first_level = levels_.add * scale[r] + bias[r];
        float q = std::fabs(step) < 0x1p-100F ? 0.0F : (wanted - first_level) / step;
        q = std::nearbyint(std::min(std::max(q, 0.0F), static_cast<float>(levels_.top)));
        const float value = (levels_.mul * q + levels_.add) * scale[r] + bias[r];
        codes_[r * in + k] = static_cast<std::uint8_t>(q);
        errors_[k * kLaneRows + r] = (original - value) * size;
        const double miss = static_cast<double>(wanted - value);
        error += miss * miss * static_cast<double>(importance_[k]);
      }
    }
    return error;
  }

  const MatrixShape& shape_;
  Levels levels_;
  std::span<const float> sizes_;
  const InputFactor& factor_;
  std::span<const float> values_in_;
  std::size_t rows_ = 0;
  std::vector<float> errors_;   // [in][lanes], times the inputs' sizes
  std::vector<float> targets_;  // [group][lanes], likewise
  std::vector<float> values_;
  std::vector<std::uint8_t> spare_;
  std::vector<float> importance_;
  std::vector<std::uint8_t> codes_;
  std::vector<std::uint16_t> scales_, biases_;
};

}  // namespace

Result<InputFactor> InputFactor::of_moment(std::int64_t n, std::span<const float> moment, double damping) {
  const auto size = static_cast<std::size_t>(n);
  if (n < 1 || moment.size() != size * (size + 1) / 2) {
    return make_error(ErrorCode::kInvalidArgument, "second moment of {} inputs: {} numbers found, {} needed",
                      n, moment.size(), n * (n + 1) / 2);
  }
  std::vector<double> inverse(size);
  for (std::size_t i = 0; i < size; ++i) {
    const double square = double{moment[at(i, i)]};
    if (!std::isfinite(square) || square < 0) {
      return make_error(ErrorCode::kInvalidArgument, "second moment of input {}: {} found, a square needed",
                        i, square);
    }
    inverse[i] = square > 0 ? 1 / std::sqrt(square) : 0;
  }
  // In place from the last column back: row k of the triangle becomes column k of U, its diagonal D[k].
  std::vector<double> h(moment.begin(), moment.end());
  for (std::size_t i = 0; i < size; ++i) {
    for (std::size_t j = 0; j < i; ++j) h[at(i, j)] *= inverse[i] * inverse[j];
    h[at(i, i)] = 1 + damping;
  }
  InputFactor factor;
  factor.upper_.resize(size * (size - 1) / 2);
  factor.left_.resize(size);
  std::vector<double> column(size);
  for (std::size_t k = size; k-- > 0;) {
    const double* row = h.data() + at(k, 0);
    const double left = row[k];
    if (!(left > 0) || !std::isfinite(left)) {
      return make_error(ErrorCode::kInvalidArgument, "second moment: not one of {} inputs (at input {})", n,
                        k);
    }
    factor.left_[k] = static_cast<float>(left);
    for (std::size_t j = 0; j < k; ++j) {
      column[j] = row[j] / left;
      factor.upper_[k * (k - 1) / 2 + j] = static_cast<float>(column[j]);
    }
    for (std::size_t i = 0; i < k; ++i) {
      double* to = h.data() + at(i, 0);
      const double by = row[i];
      for (std::size_t j = 0; j <= i; ++j) to[j] -= by * column[j];
    }
  }
  return factor;
}

InputFactor InputFactor::of_means(std::span<const float> squares, std::span<const float> means) {
  assert(squares.size() == means.size());
  const std::size_t size = squares.size();
  InputFactor factor;
  factor.upper_.resize(size * (size - 1) / 2);
  factor.left_.resize(size);
  // With m = mean / root mean square the moment is the diagonal 1 - m^2 and m m^T. What the inputs behind k
  // leave of m m^T is m m^T / rest.
  std::vector<double> m(size);
  for (std::size_t k = 0; k < size; ++k) {
    const double root = std::sqrt(double{squares[k]});
    constexpr double kMost = 0.99;
    m[k] = root > 0 ? std::clamp(double{means[k]} / root, -kMost, kMost) : 0;
  }
  double rest = 1;
  for (std::size_t k = size; k-- > 0;) {
    const double own = 1 - m[k] * m[k];
    const double left = own + m[k] * m[k] / rest;
    factor.left_[k] = static_cast<float>(left);
    for (std::size_t j = 0; j < k; ++j) {
      factor.upper_[k * (k - 1) / 2 + j] = static_cast<float>(m[j] * m[k] / (rest * left));
    }
    rest += m[k] * m[k] / own;
  }
  return factor;
}

Result<double> quantise_with_feedback(const MatrixShape& shape, std::span<const float> values,
                                      std::span<const float> sizes, const InputFactor& factor,
                                      const MutableMatrixParts& out) {
  const auto in = static_cast<std::size_t>(shape.in);
  if (!spec::is_quantised(shape.format) || sizes.size() != in || factor.size() != shape.in) {
    return make_error(ErrorCode::kInvalidArgument, "feedback: {} sizes and {} factors found, {} needed",
                      sizes.size(), factor.size(), in);
  }
  if (values.size() != in * static_cast<std::size_t>(shape.rows)) {
    return make_error(ErrorCode::kInvalidArgument, "weights: found {}, needed {}", values.size(),
                      shape.in * shape.rows);
  }
  for (const float value : values) {
    if (!std::isfinite(value)) {
      return make_error(ErrorCode::kInvalidArgument, "weight {} found, a finite number needed", value);
    }
  }
  Strip strip(shape, sizes, factor);
  double error = 0;
  const auto copy = [](std::span<const std::uint16_t> from, std::size_t row, std::span<std::byte> to) {
    std::memcpy(to.data() + row * from.size_bytes(), from.data(), from.size_bytes());
  };
  const auto row_bytes = static_cast<std::size_t>(shape.row_bytes());
  for (std::size_t first = 0; first < static_cast<std::size_t>(shape.rows); first += kLaneRows) {
    const std::size_t rows = std::min(kLaneRows, static_cast<std::size_t>(shape.rows) - first);
    error += strip.code(values.subspan(first * in, rows * in), rows);
    for (std::size_t r = 0; r < rows; ++r) {
      pack_codes(shape.format, strip.codes(r), out.data.subspan((first + r) * row_bytes, row_bytes));
      copy(strip.scales(r), first + r, out.scales);
      copy(strip.biases(r), first + r, out.biases);
    }
  }
  return error;
}

}  // namespace sluice::quant
#endif  // HWY_ONCE

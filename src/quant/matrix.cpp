#include "quant/matrix.h"

#include <bit>
#include <cassert>
#include <cmath>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/numbers.h"
#include "quant/codes.h"
#include "quant/fit.h"
#include "quant/near_q4.h"

namespace sluice::quant {
namespace {

using spec::Format;

Result<void> check_size(std::string_view what, std::size_t found, std::int64_t needed) {
  if (found == static_cast<std::size_t>(needed)) return {};
  return make_error(ErrorCode::kInvalidArgument, "{}: found {}, needed {}", what, found, needed);
}

Result<void> check_shape(const MatrixShape& shape) {
  if (shape.rows < 0 || shape.in < 0 || (shape.in > 0 && shape.rows > (std::int64_t{1} << 56) / shape.in)) {
    return make_error(ErrorCode::kInvalidArgument, "a matrix of [{}][{}] weights has no size", shape.rows,
                      shape.in);
  }
  if (!spec::is_quantised(shape.format)) return {};
  if (shape.group <= 0 || shape.group % 32 != 0 || shape.group > kLongestGroup) {
    return make_error(ErrorCode::kInvalidArgument, "groups of {} weights: needed a multiple of 32 up to {}",
                      shape.group, kLongestGroup);
  }
  if (shape.in % shape.group != 0) {
    return make_error(ErrorCode::kInvalidArgument, "rows of {} weights are not whole groups of {}", shape.in,
                      shape.group);
  }
  return {};
}

Result<void> check_parts(const MatrixShape& shape, const MatrixParts& parts) {
  SLUICE_TRY(check_shape(shape));
  SLUICE_TRY(check_size("bytes of weights", parts.data.size(), shape.data_bytes()));
  SLUICE_TRY(check_size("bytes of scales", parts.scales.size(), shape.scale_bytes()));
  return check_size("bytes of biases", parts.biases.size(), shape.scale_bytes());
}

bool all_finite(std::span<const float> values) {
  std::uint32_t most = 0;
  for (const float v : values) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(v) & 0x7fffffffU;
    most = most > magnitude ? most : magnitude;
  }
  return most < 0x7f800000U;
}

Result<void> check_importance(std::int64_t in, std::span<const float> importance) {
  if (importance.empty()) return {};
  SLUICE_TRY(check_size("importances of inputs", importance.size(), in));
  for (std::size_t i = 0; i < importance.size(); ++i) {
    if (std::isfinite(importance[i]) && importance[i] >= 0) continue;
    return make_error(ErrorCode::kInvalidArgument,
                      "the importance of input {} is {}: needed a finite number that is not negative", i,
                      importance[i]);
  }
  return {};
}

template <class T>
std::span<T> part(std::span<T> all, std::int64_t row, std::int64_t each) {
  return all.subspan(static_cast<std::size_t>(row * each), static_cast<std::size_t>(each));
}

/// Quantises one row after the other into its place.
class RowWriter {
 public:
  RowWriter(const MatrixShape& shape, std::span<const float> importance, bool by_size,
            const MutableMatrixParts& out)
      : shape_(shape), importance_(importance), by_size_(by_size), out_(out) {
    if (!spec::is_quantised(shape.format)) return;
    codes_.resize(static_cast<std::size_t>(shape.in));
    scales_.resize(static_cast<std::size_t>(shape.groups()));
    biases_.resize(scales_.size());
  }

  double write(std::int64_t row, std::span<const float> values) {
    const auto data = part(out_.data, row, shape_.row_bytes());
    if (shape_.format == Format::kF32) {
      if (!values.empty()) std::memcpy(data.data(), values.data(), data.size());
      return 0;
    }
    if (shape_.format == Format::kBf16) return write_bfloat16(values, data.data());
    const auto weights = weights_of(values);
    const double error =
        by_size_ && shape_.format == Format::kQ3
            ? fit_row_near_q4(shape_.group, values, weights, codes_, scales_, biases_)
            : fit_row(shape_.format, shape_.group, values, weights, codes_, scales_, biases_);
    pack_codes(shape_.format, codes_, data);
    copy(scales_, row, out_.scales);
    copy(biases_, row, out_.biases);
    return error;
  }

 private:
  double write_bfloat16(std::span<const float> values, std::byte* to) const {
    double error = 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const BFloat16 narrow = to_bfloat16(values[i]);
      std::memcpy(to + 2 * i, &narrow.bits, sizeof narrow.bits);
      const double miss = static_cast<double>(values[i]) - static_cast<double>(to_float(narrow));
      error += miss * miss * (importance_.empty() ? 1.0 : static_cast<double>(importance_[i]));
    }
    return error;
  }
  /// What the errors of a row's weights count.
  std::span<const float> weights_of(std::span<const float> values) {
    if (!by_size_) return importance_;
    weights_.resize(values.size());
    weigh_by_size(shape_.group, values, importance_, weights_);
    return weights_;
  }
  static void copy(const std::vector<std::uint16_t>& from, std::int64_t row, std::span<std::byte> to) {
    const std::size_t bytes = from.size() * sizeof(std::uint16_t);
    if (bytes > 0) std::memcpy(to.data() + static_cast<std::size_t>(row) * bytes, from.data(), bytes);
  }

  const MatrixShape& shape_;
  std::span<const float> importance_;
  bool by_size_;
  const MutableMatrixParts& out_;
  std::vector<float> weights_;
  std::vector<std::uint8_t> codes_;
  std::vector<std::uint16_t> scales_, biases_;
};

Error not_finite(const MatrixShape& shape, std::int64_t row, std::span<const float> values) {
  std::size_t column = 0;
  while (std::isfinite(values[column])) ++column;
  return make_error(ErrorCode::kInvalidArgument, "weight [{}][{}] of [{}][{}] is {}: needed a finite number",
                    row, column, shape.rows, shape.in, values[column]);
}

}  // namespace

void weigh_by_size(int group, std::span<const float> values, std::span<const float> importance,
                   std::span<float> out) {
  const auto n = static_cast<std::size_t>(group);
  for (std::size_t first = 0; first < values.size(); first += n) {
    double squares = 0;
    for (const float x : values.subspan(first, n)) squares += double{x} * double{x};
    const double inverse = squares > 0 ? static_cast<double>(n) / squares : 0;
    for (std::size_t i = first; i < first + n; ++i) {
      const double weight = std::sqrt(1 + double{values[i]} * double{values[i]} * inverse);
      out[i] = static_cast<float>(weight * (importance.empty() ? 1.0 : double{importance[i]}));
    }
  }
}

Result<double> quantise_matrix(const MatrixShape& shape, std::span<const float> values,
                               std::span<const float> importance, const MutableMatrixParts& out,
                               ThreadTeam* team, bool by_size) {
  SLUICE_TRY(check_parts(shape, out));
  SLUICE_TRY(check_size("weights", values.size(), shape.rows * shape.in));
  SLUICE_TRY(check_importance(shape.in, importance));
  for (std::int64_t row = 0; row < shape.rows; ++row) {
    const auto one = part(values, row, shape.in);
    if (!all_finite(one)) return not_finite(shape, row, one);
  }
  // Errors are added row by row, so that their sum does not depend on who computed what.
  std::vector<double> errors(static_cast<std::size_t>(shape.rows));
  const auto rows = [&](int /*thread*/, std::size_t begin, std::size_t end) {
    RowWriter writer(shape, importance, by_size, out);
    for (std::size_t row = begin; row < end; ++row) {
      const auto r = static_cast<std::int64_t>(row);
      errors[row] = writer.write(r, part(values, r, shape.in));
    }
  };
  if (team != nullptr) {
    team->parallel_for(errors.size(), 1, rows);
  } else {
    rows(0, 0, errors.size());
  }
  double sum = 0;
  for (const double e : errors) sum += e;
  return sum;
}

namespace {

float bfloat16_at(const std::byte* from, std::size_t i) {
  BFloat16 value;
  std::memcpy(&value.bits, from + i * sizeof value.bits, sizeof value.bits);
  return to_float(value);
}

void dequantise_row(const MatrixShape& shape, const MatrixParts& parts, std::int64_t row,
                    std::span<std::uint8_t> codes, std::span<float> out) {
  const auto data = part(parts.data, row, shape.row_bytes());
  if (shape.format == Format::kF32) {
    if (!data.empty()) std::memcpy(out.data(), data.data(), data.size());
    return;
  }
  if (shape.format == Format::kBf16) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = bfloat16_at(data.data(), i);
    return;
  }
  unpack_codes(shape.format, data, codes);
  const Levels levels = levels_of(shape.format);
  const auto group = static_cast<std::size_t>(shape.group);
  const auto scales = part(parts.scales, row, 2 * shape.groups());
  const auto biases = part(parts.biases, row, 2 * shape.groups());
  for (std::size_t g = 0; g < out.size() / group; ++g) {
    const float scale = bfloat16_at(scales.data(), g);
    const float bias = bfloat16_at(biases.data(), g);
    const std::uint8_t* q = codes.data() + g * group;
    float* to = out.data() + g * group;
    for (std::size_t i = 0; i < group; ++i) {
      to[i] = (levels.mul * static_cast<float>(q[i]) + levels.add) * scale + bias;
    }
  }
}

}  // namespace

Result<void> dequantise_rows(const MatrixShape& shape, const MatrixParts& parts, std::int64_t first,
                             std::span<float> out) {
  SLUICE_TRY(check_parts(shape, parts));
  if (out.empty()) return {};
  const auto in = static_cast<std::size_t>(shape.in);
  if (in == 0 || out.size() % in != 0) {
    return make_error(ErrorCode::kInvalidArgument, "room for {} weights: needed whole rows of {}", out.size(),
                      shape.in);
  }
  const auto count = static_cast<std::int64_t>(out.size() / in);
  if (first < 0 || first > shape.rows - count) {
    return make_error(ErrorCode::kInvalidArgument, "rows {} to {} of a matrix of {}", first,
                      first + count - 1, shape.rows);
  }
  std::vector<std::uint8_t> codes(spec::is_quantised(shape.format) ? in : 0);
  for (std::int64_t row = 0; row < count; ++row) {
    dequantise_row(shape, parts, first + row, codes, part(out, row, shape.in));
  }
  return {};
}

void round_to_bfloat16(std::span<const float> values, std::span<std::uint16_t> out) {
  assert(values.size() == out.size());
  for (std::size_t i = 0; i < values.size(); ++i) out[i] = to_bfloat16(values[i]).bits;
}

void widen_bfloat16(std::span<const std::uint16_t> bits, std::span<float> out) {
  assert(bits.size() == out.size());
  for (std::size_t i = 0; i < bits.size(); ++i) out[i] = to_float(BFloat16{bits[i]});
}

}  // namespace sluice::quant

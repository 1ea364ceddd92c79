// Matrices of weights between float32 and the stored formats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "base/result.h"
#include "base/threads.h"
#include "spec/formats.h"

namespace sluice::quant {

/// A matrix [rows][in] in a format. Float formats have no groups: no scales and no biases.
struct MatrixShape {
  spec::Format format = spec::Format::kF32;
  std::int64_t rows = 0;
  std::int64_t in = 0;
  int group = 64;  // inputs a scale; a multiple of 32 that divides `in`, at most kLongestGroup

  [[nodiscard]] constexpr std::int64_t row_bytes() const { return in * spec::bits_of(format) / 8; }
  [[nodiscard]] constexpr std::int64_t groups() const { return spec::is_quantised(format) ? in / group : 0; }
  [[nodiscard]] constexpr std::int64_t data_bytes() const { return rows * row_bytes(); }
  /// Bytes of the scales, and again of the biases.
  [[nodiscard]] constexpr std::int64_t scale_bytes() const { return rows * groups() * 2; }
};

/// Where a matrix lies, in bytes of any alignment: codes or numbers [rows][in], scales and biases
/// bf16 [rows][in / group].
template <class Byte>
struct BasicMatrixParts {
  std::span<Byte> data, scales, biases;

  /// Writable parts serve where parts are read.
  operator BasicMatrixParts<const std::byte>() const {  // NOLINT: implicit by design
    return {data, scales, biases};
  }
};
using MatrixParts = BasicMatrixParts<const std::byte>;
using MutableMatrixParts = BasicMatrixParts<std::byte>;

/// out = importance (or 1, if empty) * sqrt(1 + x^2 / mean of x^2 in the group).
void weigh_by_size(int group, std::span<const float> values, std::span<const float> importance,
                   std::span<float> out);

/// Stores values [rows][in] as `shape` says: quantised formats through fit_row with the importance [in] of
/// the inputs, or empty for all alike, and with `by_size` through weigh_by_size and at 3 bits
/// fit_row_near_q4, so that large weights are clipped less; bfloat16 rounded to nearest. Rows are shared out
/// among `team`, if there is one; the bits do not depend on it. Returns the sum of the squared errors,
/// weighted by importance.
///
/// kInvalidArgument: a size or group does not fit (it says found and needed), a value is not finite (it says
/// row and column), an importance is negative or not finite.
Result<double> quantise_matrix(const MatrixShape& shape, std::span<const float> values,
                               std::span<const float> importance, const MutableMatrixParts& out,
                               ThreadTeam* team = nullptr, bool by_size = false);

/// The float32 values of rows [first, first + out.size() / in) of a matrix in any format. Each is computed as
/// the kernels define it: ((mul q + add) s) + b, the product exact, rounded once.
///
/// kInvalidArgument: sizes that do not fit, rows that the matrix does not have.
Result<void> dequantise_rows(const MatrixShape& shape, const MatrixParts& parts, std::int64_t first,
                             std::span<float> out);

/// Numbers between float32 and bfloat16 bits, as many as there are on both sides (asserted).
void round_to_bfloat16(std::span<const float> values, std::span<std::uint16_t> out);
void widen_bfloat16(std::span<const std::uint16_t> bits, std::span<float> out);

}  // namespace sluice::quant

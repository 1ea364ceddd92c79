// Products of quantised matrices with rows in 16-bit integers, on one thread.
//
// A row's inputs are taken in the matrix's groups: each group is rounded to integers X = round(x / s) of
// magnitude up to 32639, s = (largest magnitude) / 32639. With a group's codes q, scale a and bias b,
//
//   sum of w x over the group = s (a T + b U),   T = sum of q X,  U = sum of X,
//
// T and U are exact in 32 bits. THE ORDER OF SUMMATION is therefore that of the groups: group g belongs to
// sum g % 16 of an output, sum = fma(s, fma(T, a, b U), sum) in ascending g, all in float32; then sums i and
// i + 8, i and i + 4, i and i + 2 and the last two are added. It is the same for any number of rows and
// threads and, where there is a fused multiply-add, on any SIMD target. Rounding the inputs costs about 1e-5
// of an output; a group with a value that is not finite gives NaN.
//
// Few rows are bound by memory: weights are read once, straight on, and unpacked in registers. Many rows are
// bound by arithmetic: weights are unpacked once for all of them.
#pragma once

#include <cstdint>

#include "backend/cpu/linear_kernels.h"
#include "backend/types.h"

namespace sluice::backend::cpu {

/// Whether integer_range can multiply with such matrices: a group's sum fits 32 bits, and a row fits the
/// scratch.
constexpr bool has_integer_products(Format format, std::int64_t group, std::int64_t in) {
  return is_quantised(format) && group <= 256 && in <= 128 * 1024;
}

constexpr std::int64_t kSums = 16;  // of an output

/// Up to this many rows are few. The rounded inputs of more are beside the codes too much for the first
/// cache.
constexpr std::int64_t kFewRows = 4;
/// Rows of a tile, when they are many.
constexpr std::int64_t kMostTileRows = 12;
/// Rows that one call of integer_range takes at most.
constexpr std::int64_t kMostIntegerRows = 8 * kMostTileRows;
/// Rows that one call should take: up to twice as many as few go in two halves, the second of which finds the
/// weights in the cache.
constexpr std::int64_t integer_row_block(std::int64_t rows) {
  return rows > kFewRows && rows <= 2 * kFewRows ? (rows + 1) / 2 : kMostIntegerRows;
}
/// Outputs of a pass over many rows: ranges given to integer_range should start at multiples.
constexpr std::int64_t kIntegerOutputs = 32;

/// Pairs of inputs that a word of codes holds two bits, a nibble or a byte each of. A pair takes a word: its
/// integers in the halves, low half first; or where the target multiplies bytes, for pairs 2 m and 2 m + 1,
/// the four high and the four low bytes of the inputs of field m.
constexpr std::int64_t word_pairs(Order order) {
  return order == Order::kNatural ? 2 : order == Order::kNibbles ? 4 : 8;
}

/// Quantised rows. Pair n of word d of codes (of kQ3: of a word of upper bits) lies
///   few rows:  at pairs[d / lanes][n][row][d % lanes], then zeros up to the end of a block of lanes / 4
///   groups many rows: at pairs[row / tile][d][n][row % tile], zeros where there is no row
/// and a group's s and U
///   few rows:  at scales[row][group], zeros up to a multiple of 16 groups
///   many rows: at scales[row / tile][group][row % tile]
struct IntegerRows {
  std::int64_t rows = 0;
  std::int64_t tile = 0;  // rows in a tile; few rows are one tile
  std::int64_t in = 0;
  std::int64_t group = 0;
  Order order = Order::kNatural;
  bool few = true;
  std::int64_t lanes = 0;  // of a vector
  std::int32_t* pairs = nullptr;
  float* scales = nullptr;
  float* sums = nullptr;

  [[nodiscard]] std::int64_t groups() const { return in / group; }
  /// With those that fill the last sums.
  [[nodiscard]] std::int64_t all_groups() const { return (groups() + kSums - 1) / kSums * kSums; }
  /// Rows with those that fill the last tile.
  [[nodiscard]] std::int64_t all_rows() const { return (rows + tile - 1) / tile * tile; }
  [[nodiscard]] std::int64_t words() const { return in / 2 / word_pairs(order); }
  /// With those that fill the last vectors.
  [[nodiscard]] std::int64_t all_words() const {
    if (!few) return words();
    const std::int64_t block = lanes / 4;
    const std::int64_t blocks = (groups() + block - 1) / block * block * (group / 2 / word_pairs(order));
    return (blocks + lanes - 1) / lanes * lanes;
  }
  /// Words of `pairs`, and floats of `scales` and of `sums`.
  [[nodiscard]] std::int64_t pair_count() const { return all_rows() * all_words() * word_pairs(order); }
  [[nodiscard]] std::int64_t group_count() const { return all_rows() * (few ? all_groups() : groups()); }
};

/// The layout of `rows` rows, without its memory.
IntegerRows integer_rows(Order order, std::int64_t rows, std::int64_t in, std::int64_t group);

/// Groups [first, last) of row `row` of `to`. x points to the row's first input.
void quantise_groups(const float* x, std::int64_t first, std::int64_t last, const IntegerRows& to,
                     std::int64_t row);

/// Row `row` of `to` = the only row of `from`.
void copy_integer_row(const IntegerRows& from, const IntegerRows& to, std::int64_t row);
/// Row `row` of `to` = zeros: tiles are full.
void clear_integer_row(const IntegerRows& to, std::int64_t row);

/// Floats of scratch a thread needs for integer_range.
constexpr std::int64_t kIntegerScratch = 64 * 1024;

/// y[r][o] = W x[r] for o in [first, last) and r < x.rows; x has the order and the group of w. `scratch` is
/// aligned to 64 bytes.
void integer_range(const Matrix& w, std::int64_t first, std::int64_t last, const IntegerRows& x,
                   float* const* y, float* scratch);

/// Highway targets these kernels were compiled for.
std::int64_t integer_targets();

}  // namespace sluice::backend::cpu

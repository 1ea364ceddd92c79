// Matrix-vector and matrix-matrix products for every weight format, on one thread.
//
// THE ORDER OF SUMMATION, the same in every variant below, so that an output's bits depend on its weights,
// its x and nothing else (for one SIMD target):
//   * inputs are taken in chunks of 32, in the order that suits the format's codes (`Order`); a chunk is
//     32 / kLanes vectors; a last, incomplete chunk is filled with zeros;
//   * 16 chunks (512 inputs) are a block: each lane sums its products in order with fused multiply-adds;
//   * block sums are added to the lanes' totals, block after block;
//   * the lanes' totals are added by sum4 (simd-inl.h).
// Short chains inside blocks keep the rounding error near that of a pairwise sum; independent chains come
// from the several outputs and rows that a kernel works on at once.
#pragma once

#include <cstdint>

#include "backend/types.h"

namespace sluice::backend::cpu {

/// Inputs in a chunk, and chunks in a block.
constexpr std::int64_t kChunk = 32;
constexpr std::int64_t kBlockChunks = 16;

/// Rows that one call takes at most; up to kFusedRows weights are decoded in registers, above into scratch.
constexpr std::int64_t kMaxRows = 60;
constexpr std::int64_t kFusedRows = 8;

/// Outputs that share one pass; ranges given to linear_range should start at multiples.
constexpr std::int64_t kFusedOutputs = 4;
constexpr std::int64_t kPanelOutputs = 16;

/// Floats of scratch a thread needs for linear_range.
constexpr std::int64_t kLinearScratch =
    kPanelOutputs * kBlockChunks * kChunk + kPanelOutputs * (kMaxRows + 6) * 16;

/// In which order a format wants the 32 inputs of a chunk.
enum class Order : std::uint8_t {
  kNatural,
  kNibbles,  // position 4 m + w holds input 8 w + m: words side by side, nibble after nibble
  kLowBits,  // position 8 b + 2 p + t holds input 16 t + 8 (p % 2) + 2 b + p / 2
};

constexpr Order order_of(Format format) {
  switch (format) {
    case Format::kQ4:
      return Order::kNibbles;
    case Format::kQ3:
    case Format::kQ2:
      return Order::kLowBits;
    default:
      return Order::kNatural;
  }
}

/// Position in its chunk of input i < 32.
constexpr std::int64_t position_in_chunk(Order order, std::int64_t i) {
  switch (order) {
    case Order::kNibbles:
      return 4 * (i % 8) + i / 8;
    case Order::kLowBits:
      return 8 * (i % 8 / 2) + 2 * (i / 8 % 2 + 2 * (i % 2)) + i / 16;
    default:
      return i;
  }
}

constexpr std::int64_t padded(std::int64_t in) {
  return (in + kChunk - 1) / kChunk * kChunk;
}

/// Whether x can be used where it lies.
constexpr bool needs_arranging(Format format, std::int64_t in) {
  return order_of(format) != Order::kNatural || in % kChunk != 0;
}

/// to[0 .. padded(in)) = x in that order, zeros at the end.
void arrange(Order order, const float* x, std::int64_t in, float* to);

/// y[r][o] = W x[r] for o in [first, last) and r < rows <= kMaxRows; x[r] arranged for the format. `scratch`
/// holds kLinearScratch floats, aligned to 64 bytes; it may be null for rows <= kFusedRows.
void linear_range(const Matrix& w, std::int64_t first, std::int64_t last, const float* const* x,
                  std::int64_t rows, float* const* y, float* scratch);

/// Row `row` of a matrix as float32, in natural order.
void decode_row(const Matrix& w, std::int64_t row, float* to);

/// Highway targets these kernels were compiled for.
std::int64_t compiled_targets();

}  // namespace sluice::backend::cpu

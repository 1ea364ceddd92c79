// What a device composes where it has not the thing itself: log1p of a logarithm, and the matrix primitive of
// multiplications of 8x8 tiles. Written in the dialect, so that the emulated device tests it.
#pragma once

namespace sluice::kernels {

/// log(1 + x) of the logarithm of the rounded sum: corrects it by what the rounding lost.
DEVICE_FUNCTION f32 log1p_composed(f32 x, f32 log_of_sum) {
  const f32 sum = 1 + x;
  if (sum == 1) return x;
  const f32 kept = sum - 1;
  return kept == x ? log_of_sum : log_of_sum * (x / kept);
}

// --- 8x8 tiles as Metal's SIMD groups hold them: a lane has one row (fm) of two neighbouring columns (fn, fn
// + 1) while a fragment of MmaA and MmaC has, in lane l, row l / 4 and columns 2 (l % 4), + 1.

/// The lane of a tile that has row `row` and the columns from `column`, which is even.
DEVICE_FUNCTION u32 tile_lane(u32 row, u32 column) {
  return row / 4 * 16 + column / 4 * 8 + row / 2 % 2 * 4 + row % 2 * 2 + column / 2 % 2;
}
DEVICE_FUNCTION u32 tile_row(u32 lane) {
  return lane / 16 * 4 + lane / 2 % 4;
}
DEVICE_FUNCTION u32 tile_column(u32 lane) {
  return lane / 8 % 2 * 4 + lane % 2 * 2;
}

/// What a lane holds of a tile of floats.
struct TilePair {
  f32 x, y;
};

/// c += a b. Units::multiply(t, a0, b0, a1, b1) gives a0 b0 + a1 b1 for four tiles of 16-bit numbers, a
/// lane's two elements in a word.
template <class Units>
DEVICE_FUNCTION void mma_of_tiles(const Thread& t, MmaC& c, const MmaA& a, const MmaB& b) {
  const u32 row = tile_row(t.lane);
  const u32 column = tile_column(t.lane);
  // A word of a is a pair of columns in both layouts: it only changes lanes.
  const u32 from = row * 4 + column / 2;
  u32 left[4];
  UNROLL
  for (u32 i = 0; i < 4; ++i) left[i] = simd_shuffle(t, a.r[i], from);
  // A word of b is a pair of inputs, which are rows of its tile: of two columns a half of each.
  u32 right[2];
  UNROLL
  for (u32 i = 0; i < 2; ++i) {
    const u32 first = simd_shuffle(t, b.r[i], column * 4 + row / 2);
    const u32 second = simd_shuffle(t, b.r[i], column * 4 + 4 + row / 2);
    right[i] = row % 2 == 0 ? (first & 0xffffU) | second << 16 : first >> 16 | (second & 0xffff0000U);
  }
  const u32 to = tile_lane(t.lane / 4, t.lane % 4 * 2);
  UNROLL
  for (u32 half_of_rows = 0; half_of_rows < 2; ++half_of_rows) {
    const TilePair product =
        Units::multiply(t, left[half_of_rows], right[0], left[half_of_rows + 2], right[1]);
    c.r[half_of_rows * 2] += simd_shuffle(t, product.x, to);
    c.r[half_of_rows * 2 + 1] += simd_shuffle(t, product.y, to);
  }
}

}  // namespace sluice::kernels

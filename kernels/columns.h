// Activations as the matrix units read them: a segment of 256 inputs of 8 rows, rounded to halves.
//
// The values of a segment are scaled by a power of two, so that the largest lies in [2^14, 2^15): nothing
// overflows a half, and only what is 2^24 times smaller loses bits to its exponent. What rounding leaves is
// thrown away with one part and kept by a second half with two: 22 bits. Weights in bfloat16 are multiplied
// by three bfloat16 parts, 24 bits: all of a float. A row's parts depend on that row alone.
#pragma once

#include "codes.h"

namespace sluice::kernels {

/// The power of two that brings `most` into [2^14, 2^15), and its inverse.
struct PowerOfTwo {
  f32 up, down;
};
DEVICE_FUNCTION PowerOfTwo scale_for(f32 most) {
  const i32 exponent = static_cast<i32>((bits_of_f32(most) >> 23) & 0xffU) - 127;
  const i32 k = max_of(exponent - 14, -126);
  PowerOfTwo scale;
  scale.up = f32_of_bits(static_cast<u32>(127 - k) << 23);
  scale.down = f32_of_bits(static_cast<u32>(127 + k) << 23);
  return scale;
}

/// One block of 64 inputs of a lane's column (column l / 4, inputs 16 (l % 4) .. + 15): eight pairs in the
/// order of Codes::pair, for each part.
template <u32 kParts>
struct BlockColumns {
  u32 pair[kParts][8];
};

/// Rounds two values of pair number `p` for each part; gives their sum as rounded. Odd pairs of weights count
/// 16 times (codes.h): their values a 16th.
template <u32 kParts>
DEVICE_FUNCTION f32 round_pair(u32 p, f32 a, f32 b, f32 up, BlockColumns<kParts>& out) {
  const f32 factor = p % 2 == 0 ? up : up * 0.0625F;
  a *= factor;
  b *= factor;
  f32 sum = 0;
  UNROLL
  for (u32 part = 0; part < kParts; ++part) {
    const u32 word = half2_of_f32(a, b);
    out.pair[part][p] = word;
    const f32 ra = f32_of_half(static_cast<u16>(word & 0xffffU));
    const f32 rb = f32_of_half(static_cast<u16>(word >> 16));
    sum += ra + rb;
    a -= ra;
    b -= rb;
  }
  return p % 2 == 0 ? sum : sum * 16.0F;
}

/// Rounds 16 values, scaled by `up`; gives their sum as rounded: of pairs 0, 1, 4 and 5, and of the others,
/// as the halves of stage.h have them.
template <u32 kParts>
DEVICE_FUNCTION f32 round_block(const f32* x, f32 up, BlockColumns<kParts>& out) {
  f32 sum[2] = {0, 0};
  UNROLL
  for (u32 p = 0; p < 8; ++p) {
    const u32 first = p / 4 * 8 + p % 4;  // and first + 4
    sum[p / 2 % 2] += round_pair<kParts>(p, x[first], x[first + 4], up, out);
  }
  return sum[0] + sum[1];
}

/// A segment of a lane's column, and what the products with it need of the columns of its results, which are
/// 2 (l % 4) and + 1.
template <u32 kParts>
struct SegmentColumns {
  BlockColumns<kParts> block[kSegmentBlocks];
  f32 sum[kSegmentBlocks][2];  // of the block's values, as rounded and scaled
  f32 down[2];                 // undoes the scale
};

/// 16 values of a lane's row, zeros if they are not present; `most` grows to the largest magnitude.
DEVICE_FUNCTION void load_block(Global<const f32> x, bool present, u32 block, u32 quarter, f32* values,
                                f32& most) {
  UNROLL
  for (u32 i = 0; i < 4; ++i) {
    f32x4 v;
    v.x = v.y = v.z = v.w = 0;
    if (present) v = load4f(x, block * kBlock + quarter * 16 + i * 4);
    values[4 * i] = v.x;
    values[4 * i + 1] = v.y;
    values[4 * i + 2] = v.z;
    values[4 * i + 3] = v.w;
    most = max_f32(most, max_f32(max_f32(abs_f32(v.x), abs_f32(v.y)), max_f32(abs_f32(v.z), abs_f32(v.w))));
  }
}

/// Reads blocks 0 .. blocks - 1 of a segment; `x` is the lane's row there, if one is present.
template <u32 kParts>
DEVICE_FUNCTION void load_columns(const Thread& t, Global<const f32> x, bool present, u32 blocks,
                                  SegmentColumns<kParts>& columns) {
  const u32 quarter = t.lane % 4;
  f32 values[kSegmentBlocks][16];
  f32 most = 0;
  UNROLL
  for (u32 b = 0; b < kSegmentBlocks; ++b) load_block(x, present && b < blocks, b, quarter, values[b], most);
  most = max_f32(most, simd_shuffle_xor(t, most, 1));
  most = max_f32(most, simd_shuffle_xor(t, most, 2));
  const PowerOfTwo scale = scale_for(most);
  UNROLL
  for (u32 b = 0; b < kSegmentBlocks; ++b) {
    f32 sum = round_block<kParts>(values[b], scale.up, columns.block[b]);
    sum += simd_shuffle_xor(t, sum, 1);
    sum += simd_shuffle_xor(t, sum, 2);
    columns.sum[b][0] = simd_shuffle(t, sum, quarter * 8);
    columns.sum[b][1] = simd_shuffle(t, sum, quarter * 8 + 4);
  }
  columns.down[0] = simd_shuffle(t, scale.down, quarter * 8);
  columns.down[1] = simd_shuffle(t, scale.down, quarter * 8 + 4);
}

/// c = a block of a tile of 16 rows times the columns: the sum of codes times values.
template <u32 kParts, class Codes>
DEVICE_FUNCTION MmaC block_product(const Thread& t, const Codes& first, const Codes& second,
                                   const BlockColumns<kParts>& x) {
  MmaC c;
  c.r[0] = c.r[1] = c.r[2] = c.r[3] = 0;
  const u32 quarter = t.lane % 4;
  MmaA a[4];
  UNROLL
  for (u32 j = 0; j < 4; ++j) {
    a[j].r[0] = first.pair(0, j, quarter);
    a[j].r[1] = second.pair(0, j, quarter);
    a[j].r[2] = first.pair(1, j, quarter);
    a[j].r[3] = second.pair(1, j, quarter);
  }
  UNROLL
  for (u32 part = 0; part < kParts; ++part) {
    UNROLL
    for (u32 j = 0; j < 4; ++j) {
      MmaB b;
      b.r[0] = x.pair[part][j];
      b.r[1] = x.pair[part][4 + j];
      mma_f16(t, c, a[j], b);
    }
  }
  return c;
}

/// v += scale * codes + bias * sum, for the lane's four results of one block.
DEVICE_FUNCTION void add_block(f32* v, const MmaC& c, f32 scale0, f32 bias0, f32 scale1, f32 bias1, f32 sum0,
                               f32 sum1) {
  v[0] = fma_f32(bias0, sum0, fma_f32(scale0, c.r[0], v[0]));
  v[1] = fma_f32(bias0, sum1, fma_f32(scale0, c.r[1], v[1]));
  v[2] = fma_f32(bias1, sum0, fma_f32(scale1, c.r[2], v[2]));
  v[3] = fma_f32(bias1, sum1, fma_f32(scale1, c.r[3], v[3]));
}

}  // namespace sluice::kernels

// Rounded rows in a group's memory, for the few rows of a decode step (columns.h): each group rounds for
// itself what all its SIMD groups then multiply with.
//
// A unit is one segment of one row: 16 lanes round it. Units lie one after another, [segment][row], each 128
// words in the order of gemm.h's chunks, with four sums and the power of two that undoes its scale.
#pragma once

#include "matvec.h"

namespace sluice::kernels {

constexpr u32 kUnitWords = 32 * kSegmentBlocks;
constexpr u32 kUnitSides = kSegmentBlocks + 1;  // sums of its blocks, then the scale

/// Rounds 16 values of one unit: `lane16` of its 16 lanes. All lanes of the SIMD group call it.
DEVICE_FUNCTION void stage_values(const Thread& t, const f32* values, bool present, Shared<u32> words,
                                  Shared<f32> sides, u32 unit) {
  const u32 block = t.lane / 4 % 4;
  const u32 quarter = t.lane % 4;
  f32 most = 0;
  UNROLL for (u32 i = 0; i < 16; ++i) most = max_f32(most, abs_f32(values[i]));
  UNROLL for (u32 mask = 1; mask < 16; mask *= 2) most = max_f32(most, simd_shuffle_xor(t, most, mask));
  const PowerOfTwo scale = scale_for(most);
  BlockColumns<1> columns;
  f32 sum = round_block<1>(values, scale.up, columns);
  sum += simd_shuffle_xor(t, sum, 1);
  sum += simd_shuffle_xor(t, sum, 2);
  if (!present) return;
  UNROLL for (u32 h = 0; h < 2; ++h) {
    u32x4 chunk;
    chunk.x = columns.pair[0][2 * h];
    chunk.y = columns.pair[0][4 + 2 * h];
    chunk.z = columns.pair[0][2 * h + 1];
    chunk.w = columns.pair[0][5 + 2 * h];
    store4(words, unit * kUnitWords + block * 32 + (h * 4 + quarter) * 4, chunk);
  }
  if (quarter == 0) sides[unit * kUnitSides + block] = sum;
  if (t.lane % 16 == 0) sides[unit * kUnitSides + kSegmentBlocks] = scale.down;
}

/// Rows of x [..][in]: number `index[i]` for column i, or `base + i` without an index.
struct StagedRows {
  Global<const f32> x;
  Global<const u32> index;
  i64 base;
  DEVICE_FUNCTION i64 row(u32 column) const {
    return index == nullptr ? base + column : static_cast<i64>(index[column]);
  }
};

/// Rounds segments first .. first + segments - 1 of `rows` columns.
DEVICE_FUNCTION void stage_rows(const Thread& t, u32 threads, const StagedRows& from, i64 in, u32 rows,
                                i64 first, u32 segments, Shared<u32> words, Shared<f32> sides) {
  const u32 units = segments * rows;
  NO_UNROLL for (u32 base = 0; base < units; base += threads / 16) {
    const u32 unit = base + t.index / 16;
    const bool present = unit < units;
    const u32 row = present ? unit % rows : 0;
    const i64 i =
        (first + (present ? unit / rows : 0)) * kSegment + (t.lane / 4 % 4) * kBlock + t.lane % 4 * 16;
    f32 values[16];
    f32 most = 0;
    load_block(from.x + from.row(row) * in + i, present && i < in, 0, 0, values, most);
    stage_values(t, values, present, words, sides, unit);
  }
}

/// Unit number `unit` becomes the zeros that columns without a row are read from.
DEVICE_FUNCTION void stage_zeros(const Thread& t, Shared<u32> words, Shared<f32> sides, u32 unit) {
  if (t.index < kUnitWords) words[unit * kUnitWords + t.index] = 0;
  if (t.index < kUnitSides) sides[unit * kUnitSides + t.index] = 0;
}

/// A lane's column of a staged segment; `at` is the segment's number among the staged, `zeros` that unit's.
DEVICE_FUNCTION void staged_columns(const Thread& t, Shared<u32> words, Shared<f32> sides, u32 at, u32 rows,
                                    u32 zeros, SegmentColumns<1>& columns) {
  const u32 quarter = t.lane % 4;
  const u32 column = t.lane / 4;
  const u32 first = (column < rows ? at * rows + column : zeros) * kUnitWords + quarter * 4;
  UNROLL for (u32 b = 0; b < kSegmentBlocks; ++b) {
    UNROLL for (u32 h = 0; h < 2; ++h) {
      const u32x4 chunk = load4(words, first + b * 32 + h * 16);
      columns.block[b].pair[0][2 * h] = chunk.x;
      columns.block[b].pair[0][4 + 2 * h] = chunk.y;
      columns.block[b].pair[0][2 * h + 1] = chunk.z;
      columns.block[b].pair[0][5 + 2 * h] = chunk.w;
    }
  }
  UNROLL for (u32 i = 0; i < 2; ++i) {
    const u32 result = quarter * 2 + i;
    const u32 side = (result < rows ? at * rows + result : zeros) * kUnitSides;
    UNROLL for (u32 b = 0; b < kSegmentBlocks; ++b) columns.sum[b][i] = sides[side + b];
    columns.down[i] = sides[side + kSegmentBlocks];
  }
}

/// What a lane needs of one segment of one tile, as it lies in memory: loaded well before it is multiplied.
template <class Codes>
struct TileSegment {
  Codes first[kSegmentBlocks], second[kSegmentBlocks];
  u32 sides[2][4];  // of each row: two words of scales, two of biases

  /// A row's scales and biases of a segment's blocks, two bfloat16 in a word.
  static DEVICE_FUNCTION void load_sides(const Weights& w, u32 row, u32 segment, u32 blocks, u32* sides) {
    const i64 base = static_cast<i64>(row) * w.groups + ((segment * kSegmentBlocks) >> w.per);
    const Global<const u16> scales = w.scales + base;
    const Global<const u16> biases = w.biases + base;
    if (w.per == 0 && w.groups % 4 == 0) {
      const u32x2 s = load2(scales, 0);
      const u32x2 b = load2(biases, 0);
      sides[0] = s.x;
      sides[1] = s.y;
      sides[2] = b.x;
      sides[3] = b.y;
      return;
    }
    sides[0] = sides[1] = sides[2] = sides[3] = 0;
    UNROLL for (u32 b = 0; b < kSegmentBlocks; ++b) {
      if (b >= blocks) continue;
      sides[b / 2] |= static_cast<u32>(scales[b >> w.per]) << (16 * (b % 2));
      sides[2 + b / 2] |= static_cast<u32>(biases[b >> w.per]) << (16 * (b % 2));
    }
  }
  DEVICE_FUNCTION void load(const Thread& t, const Weights& w, u32 tile, u32 segment) {
    const u32 last = static_cast<u32>(w.out) - 1;
    const u32 row0 = min_of(tile * kTileRows + t.lane / 4, last);
    const u32 row1 = min_of(tile * kTileRows + t.lane / 4 + 8, last);
    const u32 blocks = blocks_of(w.in, segment);
    const i64 begin = static_cast<i64>(segment) * kSegmentBlocks * Codes::kBlockBytes;
    const Global<const u8> a = w.data + (row0 * w.row_bytes + begin);
    const Global<const u8> b = w.data + (row1 * w.row_bytes + begin);
    if (blocks == kSegmentBlocks) {
      UNROLL for (u32 k = 0; k < kSegmentBlocks; ++k) {
        first[k].load(a, k, t.lane % 4);
        second[k].load(b, k, t.lane % 4);
      }
    } else {
      UNROLL for (u32 k = 0; k + 1 < kSegmentBlocks; ++k) {
        if (k >= blocks) continue;
        first[k].load(a, k, t.lane % 4);
        second[k].load(b, k, t.lane % 4);
      }
    }
    load_sides(w, row0, segment, blocks, sides[0]);
    load_sides(w, row1, segment, blocks, sides[1]);
  }
  static DEVICE_FUNCTION f32 side(const u32* words, u32 block) {
    const u32 word = words[block / 2];
    return f32_of_bits(block % 2 == 0 ? word << 16 : word & 0xffff0000U);
  }
  DEVICE_FUNCTION MmaC multiply(const Thread& t, u32 blocks, const SegmentColumns<1>& x) const {
    f32 v[4] = {0, 0, 0, 0};
    UNROLL for (u32 b = 0; b < kSegmentBlocks; ++b) {
      if (b >= blocks) break;
      const MmaC c = block_product<1>(t, first[b], second[b], x.block[b]);
      const f32 s0 = side(sides[0], b);
      const f32 s1 = side(sides[1], b);
      add_block(v, c, Codes::scale(s0), Codes::bias(s0, side(sides[0] + 2, b)), Codes::scale(s1),
                Codes::bias(s1, side(sides[1] + 2, b)), x.sum[b][0], x.sum[b][1]);
    }
    MmaC out;
    out.r[0] = v[0] * x.down[0];
    out.r[1] = v[1] * x.down[1];
    out.r[2] = v[2] * x.down[0];
    out.r[3] = v[3] * x.down[1];
    return out;
  }
};

}  // namespace sluice::kernels

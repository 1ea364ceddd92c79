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
  for (u32 base = 0; base < units; base += threads / 16) {
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

/// A lane's column of a staged segment; `at` is the segment's number among the staged.
DEVICE_FUNCTION void staged_columns(const Thread& t, Shared<u32> words, Shared<f32> sides, u32 at, u32 rows,
                                    SegmentColumns<1>& columns) {
  const u32 quarter = t.lane % 4;
  const u32 column = t.lane / 4;
  UNROLL for (u32 b = 0; b < kSegmentBlocks; ++b) {
    UNROLL for (u32 h = 0; h < 2; ++h) {
      u32x4 chunk;
      chunk.x = chunk.y = chunk.z = chunk.w = 0;
      if (column < rows)
        chunk = load4(words, (at * rows + column) * kUnitWords + b * 32 + (h * 4 + quarter) * 4);
      columns.block[b].pair[0][2 * h] = chunk.x;
      columns.block[b].pair[0][4 + 2 * h] = chunk.y;
      columns.block[b].pair[0][2 * h + 1] = chunk.z;
      columns.block[b].pair[0][5 + 2 * h] = chunk.w;
    }
  }
  UNROLL for (u32 i = 0; i < 2; ++i) {
    const u32 result = quarter * 2 + i;
    const bool present = result < rows;
    const u32 unit = (at * rows + (present ? result : 0)) * kUnitSides;
    UNROLL for (u32 b = 0; b < kSegmentBlocks; ++b) columns.sum[b][i] = present ? sides[unit + b] : 0.0F;
    columns.down[i] = present ? sides[unit + kSegmentBlocks] : 0.0F;
  }
}

/// What a lane needs of one segment of one tile: loaded well before it is multiplied.
template <class Codes>
struct TileSegment {
  Codes first[kSegmentBlocks], second[kSegmentBlocks];
  TileScales scales;
  DEVICE_FUNCTION void load(const Thread& t, const Weights& w, i64 tile, i64 segment) {
    const i64 row0 = min_of(tile * kTileRows + t.lane / 4, w.out - 1);
    const i64 row1 = min_of(tile * kTileRows + t.lane / 4 + 8, w.out - 1);
    const u32 blocks = blocks_of(w.in, segment);
    UNROLL for (u32 b = 0; b < kSegmentBlocks; ++b) {
      if (b >= blocks) break;
      first[b].load(w.data + row0 * w.row_bytes, segment * kSegmentBlocks + b, t.lane % 4);
      second[b].load(w.data + row1 * w.row_bytes, segment * kSegmentBlocks + b, t.lane % 4);
    }
    load_scales<Codes>(w, row0, 0, segment * kSegmentBlocks, blocks, scales);
    load_scales<Codes>(w, row1, 1, segment * kSegmentBlocks, blocks, scales);
  }
  DEVICE_FUNCTION MmaC multiply(const Thread& t, u32 blocks, const SegmentColumns<1>& x) const {
    f32 v[4] = {0, 0, 0, 0};
    UNROLL for (u32 b = 0; b < kSegmentBlocks; ++b) {
      if (b >= blocks) break;
      const MmaC c = block_product<1>(t, first[b], second[b], x.block[b]);
      add_block(v, c, scales.scale[0][b], scales.bias[0][b], scales.scale[1][b], scales.bias[1][b],
                x.sum[b][0], x.sum[b][1]);
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

// y = W x for few rows: every weight is read once for up to 8 rows (a tile of 16 outputs by 8 columns).
//
// Order of summation of an output: blocks of 64 inputs by the matrix unit (its own order), blocks of a
// segment of 256 in ascending order, ten segments of a span in ascending order, spans in ascending order.
// Every other kernel of this family keeps the same order.
#pragma once

#include "columns.h"

#define SLUICE_MATVEC_KERNELS(X) \
  X(matvec_q4)                   \
  X(matvec_q8)                   \
  X(matvec_q3)                   \
  X(matvec_q2)                   \
  X(matvec_bf16)                 \
  X(matvec_any)

namespace sluice::kernels {

constexpr u32 kTileRows = 16;    // outputs of a tile
constexpr u32 kTileColumns = 8;  // rows of x
constexpr u32 kTile = kTileRows * kTileColumns;
constexpr u32 kMatvecThreads = 256;
constexpr u32 kMatvecSimds = kMatvecThreads / 32;
/// Partial sums (tile, segment) that a group holds at once: 30 KiB.
constexpr u32 kMatvecTasks = 60;
constexpr u32 kMatvecMostTiles = 4;  // of a group

/// The scales and biases of a tile's two rows of a lane, for the blocks of a segment.
struct TileScales {
  f32 scale[2][kSegmentBlocks], bias[2][kSegmentBlocks];
};
template <class Codes>
DEVICE_FUNCTION void load_scales(const Weights& w, i64 row, u32 which, i64 block, u32 blocks, TileScales& s) {
  const i64 first = row * w.groups;
  UNROLL for (u32 b = 0; b < kSegmentBlocks; ++b) {
    s.scale[which][b] = 0;
    s.bias[which][b] = 0;
    if (b >= blocks) continue;
    const i64 at = first + ((static_cast<u32>(block) + b) >> w.per);
    const f32 scale = f32_of_bf16(w.scales[at]);
    s.scale[which][b] = Codes::scale(scale);
    s.bias[which][b] = Codes::bias(scale, f32_of_bf16(w.biases[at]));
  }
}

/// One segment of one tile: the lane's four results (MmaC), scale undone.
template <class Codes, u32 kParts>
DEVICE_FUNCTION MmaC tile_segment(const Thread& t, const Weights& w, i64 tile, i64 segment, u32 blocks,
                                  const SegmentColumns<kParts>& x) {
  const u32 quarter = t.lane % 4;
  const i64 row0 = min_of(tile * kTileRows + t.lane / 4, w.out - 1);
  const i64 row1 = min_of(tile * kTileRows + t.lane / 4 + 8, w.out - 1);
  const i64 block = segment * kSegmentBlocks;
  Codes first[kSegmentBlocks];
  Codes second[kSegmentBlocks];
  UNROLL
  for (u32 b = 0; b < kSegmentBlocks; ++b) {
    if (b >= blocks) break;
    first[b].load(w.data + row0 * w.row_bytes, block + b, quarter);
    second[b].load(w.data + row1 * w.row_bytes, block + b, quarter);
  }
  TileScales s;
  load_scales<Codes>(w, row0, 0, block, blocks, s);
  load_scales<Codes>(w, row1, 1, block, blocks, s);
  f32 v[4] = {0, 0, 0, 0};
  UNROLL
  for (u32 b = 0; b < kSegmentBlocks; ++b) {
    if (b >= blocks) break;
    const MmaC c = block_product<kParts>(t, first[b], second[b], x.block[b]);
    add_block(v, c, s.scale[0][b], s.bias[0][b], s.scale[1][b], s.bias[1][b], x.sum[b][0], x.sum[b][1]);
  }
  MmaC out;
  out.r[0] = v[0] * x.down[0];
  out.r[1] = v[1] * x.down[1];
  out.r[2] = v[2] * x.down[0];
  out.r[3] = v[3] * x.down[1];
  return out;
}

/// Puts a lane's results where the group adds them up: [column][row].
DEVICE_FUNCTION void put_partial(const Thread& t, Shared<f32> to, const MmaC& c) {
  const u32 row = t.lane / 4;
  const u32 column = t.lane % 4 * 2;
  to[column * kTileRows + row] = c.r[0];
  to[(column + 1) * kTileRows + row] = c.r[1];
  to[column * kTileRows + row + 8] = c.r[2];
  to[(column + 1) * kTileRows + row + 8] = c.r[3];
}

DEVICE_FUNCTION u32 blocks_of(i64 in, i64 segment) {
  return min_of(kSegmentBlocks, static_cast<u32>(in) / kBlock - static_cast<u32>(segment) * kSegmentBlocks);
}
DEVICE_FUNCTION i64 segments_of(i64 in) {
  return (in + kSegment - 1) / kSegment;
}

struct MatvecArgs {
  Weights w;
  Global<const f32> x;  // [rows][in]
  Global<f32> y;        // [rows][out]
  i64 rows;
  i32 tiles;  // of a group
  i32 silu;   // y = silu(W x / div)
  f32 div;
};

DEVICE_FUNCTION void put_output(const MatvecArgs& args, i64 row, i64 output, f32 value) {
  if (args.silu != 0) value = silu(value / args.div);
  args.y[row * args.w.out + output] = value;
}

/// Groups (tiles, columns in eights).
template <class Codes, u32 kParts>
DEVICE_FUNCTION void matvec(const Thread& t, const MatvecArgs& args, Shared<f32> partial) {
  const Weights w = args.w;
  const u32 tiles = static_cast<u32>(args.tiles);
  const i64 tile0 = static_cast<i64>(t.group_x) * tiles;
  const i64 all_tiles = (w.out + kTileRows - 1) / kTileRows;
  const i64 column0 = static_cast<i64>(t.group_y) * kTileColumns;
  const i64 column = column0 + t.lane / 4;
  const bool present = column < args.rows;
  const Global<const f32> x = args.x + (present ? column : 0) * w.in;
  const i64 segments = segments_of(w.in);
  const u32 round = kMatvecTasks / tiles;
  SpanSum total[kMatvecMostTiles * kTile / kMatvecThreads];
  UNROLL for (u32 k = 0; k < kMatvecMostTiles * kTile / kMatvecThreads; ++k) total[k].clear();
  for (i64 first = 0; first < segments; first += round) {
    const u32 now = static_cast<u32>(min_of(static_cast<i64>(round), segments - first));
    const u32 tasks = now * tiles;
    const u32 each = (tasks + kMatvecSimds - 1) / kMatvecSimds;
    const u32 end = min_of(tasks, (t.simd + 1) * each);
    SegmentColumns<kParts> columns;
    i64 loaded = -1;
    for (u32 task = t.simd * each; task < end; ++task) {
      const i64 segment = first + task / tiles;
      const i64 tile = tile0 + task % tiles;
      if (tile >= all_tiles) continue;
      const u32 blocks = blocks_of(w.in, segment);
      if (segment != loaded) load_columns<kParts>(t, x + segment * kSegment, present, blocks, columns);
      loaded = segment;
      put_partial(t, partial + static_cast<i64>(task) * kTile,
                  tile_segment<Codes, kParts>(t, w, tile, segment, blocks, columns));
    }
    barrier(t);
    UNROLL
    for (u32 k = 0; k < kMatvecMostTiles * kTile / kMatvecThreads; ++k) {
      const u32 e = t.index + k * kMatvecThreads;
      if (e >= tiles * kTile || tile0 + e / kTile >= all_tiles) continue;
      for (u32 s = 0; s < now; ++s)
        total[k].add(first + s, partial[(s * tiles + e / kTile) * kTile + e % kTile]);
    }
    barrier(t);
  }
  UNROLL
  for (u32 k = 0; k < kMatvecMostTiles * kTile / kMatvecThreads; ++k) {
    const u32 e = t.index + k * kMatvecThreads;
    if (e >= tiles * kTile) continue;
    const i64 output = (tile0 + e / kTile) * kTileRows + e % kTileRows;
    const i64 row = column0 + e % kTile / kTileRows;
    if (output < w.out && row < args.rows) put_output(args, row, output, total[k].sum());
  }
}

#define SLUICE_MATVEC(name, Codes, parts)      \
  KERNEL(name, MatvecArgs, kMatvecThreads) {   \
    KERNEL_THREAD(t);                          \
    SHARED(f32, partial, kMatvecTasks* kTile); \
    matvec<Codes, parts>(t, args, partial);    \
  }
SLUICE_MATVEC(matvec_q4, CodesQ4, 1)
SLUICE_MATVEC(matvec_q8, CodesQ8, 1)
SLUICE_MATVEC(matvec_q3, CodesQ3, 1)
SLUICE_MATVEC(matvec_q2, CodesQ2, 1)
#undef SLUICE_MATVEC

/// A lane's column of a segment in three bfloat16 parts: pairs of neighbours.
struct Bf16Columns {
  u32 pair[kSegmentBlocks][3][8];
};
DEVICE_FUNCTION void load_bf16_columns(Global<const f32> x, bool present, u32 blocks, u32 quarter,
                                       Bf16Columns& columns) {
  UNROLL
  for (u32 b = 0; b < kSegmentBlocks; ++b) {
    UNROLL
    for (u32 i = 0; i < 4; ++i) {
      f32x4 v;
      v.x = v.y = v.z = v.w = 0;
      if (present && b < blocks) v = load4f(x, b * kBlock + quarter * 16 + i * 4);
      f32 value[4] = {v.x, v.y, v.z, v.w};
      UNROLL
      for (u32 part = 0; part < 3; ++part) {
        u32 bits[4];
        UNROLL
        for (u32 k = 0; k < 4; ++k) {
          bits[k] = bf16_of_f32(value[k]);
          value[k] -= f32_of_bf16(static_cast<u16>(bits[k]));
        }
        columns.pair[b][part][2 * i] = bits[0] | (bits[1] << 16);
        columns.pair[b][part][2 * i + 1] = bits[2] | (bits[3] << 16);
      }
    }
  }
}

DEVICE_FUNCTION MmaC bf16_tile_segment(const Thread& t, const Weights& w, i64 tile, i64 segment, u32 blocks,
                                       const Bf16Columns& x) {
  const u32 quarter = t.lane % 4;
  const i64 rows[2] = {min_of(tile * kTileRows + t.lane / 4, w.out - 1),
                       min_of(tile * kTileRows + t.lane / 4 + 8, w.out - 1)};
  u32 words[2][kSegmentBlocks][8];
  UNROLL
  for (u32 which = 0; which < 2; ++which) {
    UNROLL
    for (u32 b = 0; b < kSegmentBlocks; ++b) {
      if (b >= blocks) break;
      const i64 at = ((segment * kSegmentBlocks + b) * kBlock + quarter * 16) * 2;
      UNROLL
      for (u32 half = 0; half < 2; ++half) {
        const u32x4 v = load4(w.data + rows[which] * w.row_bytes, at + half * 16);
        words[which][b][4 * half] = v.x;
        words[which][b][4 * half + 1] = v.y;
        words[which][b][4 * half + 2] = v.z;
        words[which][b][4 * half + 3] = v.w;
      }
    }
  }
  MmaC c;
  c.r[0] = c.r[1] = c.r[2] = c.r[3] = 0;
  UNROLL
  for (u32 b = 0; b < kSegmentBlocks; ++b) {
    if (b >= blocks) break;
    UNROLL
    for (u32 part = 0; part < 3; ++part) {
      UNROLL
      for (u32 j = 0; j < 4; ++j) {
        MmaA a;
        a.r[0] = words[0][b][2 * j];
        a.r[1] = words[1][b][2 * j];
        a.r[2] = words[0][b][2 * j + 1];
        a.r[3] = words[1][b][2 * j + 1];
        MmaB v;
        v.r[0] = x.pair[b][part][2 * j];
        v.r[1] = x.pair[b][part][2 * j + 1];
        mma_bf16(t, c, a, v);
      }
    }
  }
  return c;
}

KERNEL(matvec_bf16, MatvecArgs, kMatvecThreads) {
  KERNEL_THREAD(t);
  const Weights w = args.w;
  SHARED(f32, partial, kMatvecTasks * kTile);
  const i64 tile = t.group_x;
  const i64 column0 = static_cast<i64>(t.group_y) * kTileColumns;
  const i64 column = column0 + t.lane / 4;
  const bool present = column < args.rows;
  const Global<const f32> x = args.x + (present ? column : 0) * w.in;
  const i64 segments = segments_of(w.in);
  SpanSum total;
  total.clear();
  for (i64 first = 0; first < segments; first += kMatvecTasks) {
    const u32 now = static_cast<u32>(min_of(static_cast<i64>(kMatvecTasks), segments - first));
    for (u32 s = t.simd; s < now; s += kMatvecSimds) {
      const i64 segment = first + s;
      const u32 blocks = blocks_of(w.in, segment);
      Bf16Columns columns;
      load_bf16_columns(x + segment * kSegment, present, blocks, t.lane % 4, columns);
      put_partial(t, partial + static_cast<i64>(s) * kTile,
                  bf16_tile_segment(t, w, tile, segment, blocks, columns));
    }
    barrier(t);
    if (t.index < kTile) {
      for (u32 s = 0; s < now; ++s) total.add(first + s, partial[s * kTile + t.index]);
    }
    barrier(t);
  }
  const i64 output = tile * kTileRows + t.index % kTileRows;
  const i64 row = column0 + t.index / kTileRows;
  if (t.index < kTile && output < w.out && row < args.rows) put_output(args, row, output, total.sum());
}

/// Any format and shape, in float32: a SIMD group an output, its lanes over the inputs.
KERNEL(matvec_any, MatvecArgs, kMatvecThreads) {
  KERNEL_THREAD(t);
  const Weights w = args.w;
  const i64 output = static_cast<i64>(t.group_x) * kMatvecSimds + t.simd;
  if (output >= w.out) return;
  const i64 column0 = static_cast<i64>(t.group_y) * kTileColumns;
  const u32 columns = static_cast<u32>(min_of(static_cast<i64>(kTileColumns), args.rows - column0));
  f32 sum[kTileColumns] = {};
  for (i64 i = t.lane; i < w.in; i += 32) {
    const f32 weight = weight_at(w, output, i);
    UNROLL
    for (u32 c = 0; c < kTileColumns; ++c) {
      if (c < columns) sum[c] = fma_f32(weight, args.x[(column0 + c) * w.in + i], sum[c]);
    }
  }
  UNROLL
  for (u32 c = 0; c < kTileColumns; ++c) {
    const f32 all = simd_sum(t, sum[c]);
    if (c < columns && t.lane == 0) put_output(args, column0 + c, output, all);
  }
}

}  // namespace sluice::kernels

// y = W x for many rows: a group computes 128 outputs of 64 rows of x with the matrix units.
//
// The columns are rounded beforehand (prepare_columns), by the same functions as in matvec.h, and the order
// of summation is the same: an output's bits do not depend on how many rows there are.
#pragma once

#include "matvec.h"

#define SLUICE_GEMM_KERNELS(X) \
  X(prepare_columns)           \
  X(gemm_q4)                   \
  X(gemm_q8)                   \
  X(gemm_q3)                   \
  X(gemm_q2)                   \
  X(expert_tiles)              \
  X(experts_gemm_gate_up_q4)   \
  X(experts_gemm_gate_up_q8)   \
  X(experts_gemm_gate_up_q3)   \
  X(experts_gemm_gate_up_q2)   \
  X(experts_gemm_down_q4)      \
  X(experts_gemm_down_q8)      \
  X(experts_gemm_down_q3)      \
  X(experts_gemm_down_q2)

#include "experts.h"

namespace sluice::kernels {

/// Rounded rows: a block of 64 values is 128 bytes, in the order in which lanes read them: eight chunks of
/// four words, chunk 4 h + q for quarter q being pairs 2 h, 4 + 2 h, 2 h + 1 and 5 + 2 h (columns.h).
struct Prepared {
  Global<const u32> words;  // [rows][in / 64][32]
  Global<const f32> sums;   // [rows][in / 64], as rounded and scaled
  Global<const f32> downs;  // [rows][segments]: undoes the scale
};

struct PrepareColumnsArgs {
  Global<const f32> x;  // [rows][in]
  Global<u32> words;
  Global<f32> sums, downs;
  i64 rows, in;
};
constexpr u32 kPrepareThreads = 256;
/// Four lanes round a segment of a row, as in load_columns.
KERNEL(prepare_columns, PrepareColumnsArgs, kPrepareThreads) {
  KERNEL_THREAD(t);
  const i64 segments = segments_of(args.in);
  const i64 task = (static_cast<i64>(t.group_x) * kPrepareThreads + t.index) / 4;
  const u32 quarter = t.lane % 4;
  const bool present = task < args.rows * segments;
  const i64 row = present ? task / segments : 0;
  const i64 segment = present ? task % segments : 0;
  const u32 blocks = blocks_of(args.in, segment);
  const Global<const f32> x = args.x + row * args.in + segment * kSegment;
  f32 values[kSegmentBlocks][16];
  f32 most = 0;
  UNROLL
  for (u32 b = 0; b < kSegmentBlocks; ++b) load_block(x, present && b < blocks, b, quarter, values[b], most);
  most = max_f32(most, simd_shuffle_xor(t, most, 1));
  most = max_f32(most, simd_shuffle_xor(t, most, 2));
  const PowerOfTwo scale = scale_for(most);
  UNROLL
  for (u32 b = 0; b < kSegmentBlocks; ++b) {
    BlockColumns<1> columns;
    f32 sum = round_block<1>(values[b], scale.up, columns);
    sum += simd_shuffle_xor(t, sum, 1);
    sum += simd_shuffle_xor(t, sum, 2);
    if (!present || b >= blocks) continue;
    const i64 block = row * (args.in / kBlock) + segment * kSegmentBlocks + b;
    UNROLL
    for (u32 h = 0; h < 2; ++h) {
      u32x4 chunk;
      chunk.x = columns.pair[0][2 * h];
      chunk.y = columns.pair[0][4 + 2 * h];
      chunk.z = columns.pair[0][2 * h + 1];
      chunk.w = columns.pair[0][5 + 2 * h];
      store4(args.words, block * 32 + (h * 4 + quarter) * 4, chunk);
    }
    if (quarter == 0) args.sums[block] = sum;
  }
  if (present && quarter == 0) args.downs[row * segments + segment] = scale.down;
}

constexpr u32 kGemmThreads = 256;
constexpr u32 kGemmRows = 128;    // outputs of a group
constexpr u32 kGemmColumns = 64;  // rows of x
constexpr u32 kWarpTiles = 2;     // tiles of 16 outputs of a SIMD group
constexpr u32 kWarpColumns = 4;   // tiles of 8 columns of a SIMD group
/// Blocks in the group's memory at once. Metal has less of it and cannot copy in the background: there
/// weights are read where they lie.
template <class Codes>
struct GemmStages {
#ifdef SLUICE_METAL
  static constexpr bool kWeights = false;
  static constexpr u32 kCount = 2;
  static constexpr u32 kWeightWords = 4;
#else
  static constexpr bool kWeights = true;
  static constexpr u32 kCount = Codes::kBlockBytes > 32 ? 2 : 3;
  static constexpr u32 kWeightWords = kCount * 128 * (Codes::kBlockBytes / 4);
#endif
};
constexpr u32 kStageWords = kGemmColumns * 32;
constexpr i64 kSpanBlocks = static_cast<i64>(kSpanSegments) * kSegmentBlocks;

/// What a group multiplies with: 64 columns, each a prepared row. Places past the last column repeat some
/// row: what comes of them is not kept.
struct GemmColumns {
  Prepared x;
  i64 in;
  i64 rows[2];  // the prepared rows of the two columns that this thread brings in
  i64 side;     // of column number t.index % 64
};
/// A group's 128 rows of weights: of one matrix, or 64 of each of two.
struct GemmRows {
  Weights a, b;
  i64 row_a, row_b;
  u32 split;  // rows of a
  DEVICE_FUNCTION Global<const u8> data(u32 local) const {
    if (local < split) return a.data + min_of(row_a + local, a.out - 1) * a.row_bytes;
    return b.data + min_of(row_b + (local - split), b.out - 1) * b.row_bytes;
  }
  DEVICE_FUNCTION i64 scale_row(u32 local) const {
    return local < split ? min_of(row_a + local, a.out - 1) : min_of(row_b + (local - split), b.out - 1);
  }
};

/// 64 outputs of gate and the same of up.
DEVICE_FUNCTION GemmRows gate_up_rows(const Thread& t, const ExpertsArgs& e, u64 entry) {
  GemmRows w;
  w.a = expert_matrix(entry, 0, e);
  w.b = expert_matrix(entry, 1, e);
  w.row_a = static_cast<i64>(t.group_x) * (kGemmRows / 2);
  w.row_b = w.row_a;
  w.split = kGemmRows / 2;
  return w;
}
/// 128 outputs of one matrix.
DEVICE_FUNCTION GemmRows rows_of(const Thread& t, Weights a) {
  GemmRows w;
  w.a = a;
  w.b = a;
  w.row_a = static_cast<i64>(t.group_x) * kGemmRows;
  w.row_b = 0;
  w.split = kGemmRows;
  return w;
}

static_assert(2 * kStageWords >= kGemmColumns * kGemmRows / 2, "stages take the up half of a tile");

/// Accumulators of a SIMD group: 32 outputs by 32 columns.
struct GemmTotals {
  f32 v[kWarpTiles][kWarpColumns][4];
};

/// Memory of a group: stages of columns, of weights, of the columns' sums; scales of the columns by segment.
struct GemmMemory {
  Shared<u32> columns;  // [stages][kStageWords]
  Shared<u32> weights;  // [stages][kGemmRows * words of a block]
  Shared<f32> sums;     // [stages][kGemmColumns]
  Shared<f32> downs;    // [2][kGemmColumns]
};

DEVICE_FUNCTION u32 swizzle(u32 column, u32 chunk) {
  return column * 32 + (chunk ^ ((column & 1U) * 4)) * 4;
}

/// Brings in one block; every thread commits once.
template <class Codes>
DEVICE_FUNCTION void gemm_fetch(const Thread& t, const GemmRows& w, const GemmColumns& columns,
                                const GemmMemory& memory, i64 block, i64 last, u32 stage) {
  if (block < last) {
    const i64 blocks = columns.in / kBlock;
    const u32 column = t.index / 8;
    const u32 chunk = t.index % 8;
    const Shared<u32> x = memory.columns + static_cast<i64>(stage) * kStageWords;
    copy16_async(x, swizzle(column, chunk), columns.x.words,
                 (columns.rows[0] * blocks + block) * 32 + chunk * 4);
    copy16_async(x, swizzle(column + 32, chunk), columns.x.words,
                 (columns.rows[1] * blocks + block) * 32 + chunk * 4);
    constexpr u32 kRowWords = Codes::kBlockBytes / 4;
    constexpr u32 kPieces = kRowWords / Codes::kPieceWords;  // of a row
    const Shared<u32> codes = memory.weights + static_cast<i64>(stage) * kGemmRows * kRowWords;
    UNROLL for (u32 p = 0; p < (kGemmRows * kPieces + kGemmThreads - 1) / kGemmThreads; ++p) {
      const u32 piece = t.index + p * kGemmThreads;
      if (!GemmStages<Codes>::kWeights || piece >= kGemmRows * kPieces) continue;
      const u32 row = piece / kPieces;
      const u32 at = piece % kPieces * Codes::kPieceWords;
      const i64 from = block * Codes::kBlockBytes + at * 4;
      if (Codes::kPieceWords == 4) {
        copy16_async(codes, row * kRowWords + at, w.data(row), from);
      } else {
        copy8_async(codes, row * kRowWords + at, w.data(row), from);
      }
    }
    if (t.index < kGemmColumns) {
      copy4_async(memory.sums, stage * kGemmColumns + t.index, columns.x.sums, columns.side * blocks + block);
    } else if (t.index < 2 * kGemmColumns && block % kSegmentBlocks == 0) {
      const i64 segment = block / kSegmentBlocks;
      copy4_async(memory.downs, segment % 2 * kGemmColumns + t.index - kGemmColumns, columns.x.downs,
                  columns.side * segments_of(columns.in) + segment);
    }
  }
  async_commit();
}

/// The sum of one span: blocks first .. last - 1. local0: the first of the SIMD group's 32 rows among the
/// group's 128; column0: the first of its 32 columns.
template <class Codes>
DEVICE_FUNCTION void gemm_span(const Thread& t, const GemmRows& w, u32 local0, u32 column0,
                               const GemmColumns& columns, const GemmMemory& memory, i64 first, i64 last,
                               GemmTotals& span) {
  constexpr u32 kRowWords = Codes::kBlockBytes / 4;
  constexpr u32 kStages = GemmStages<Codes>::kCount;
  const u32 quarter = t.lane % 4;
  const Weights& matrix = local0 < w.split ? w.a : w.b;
  const i64 groups = matrix.groups;
  const u32 per = matrix.per;
  i64 side[kWarpTiles][2];  // where a row's scales begin
  UNROLL for (u32 m = 0; m < kWarpTiles; ++m) {
    side[m][0] = w.scale_row(local0 + m * 16 + t.lane / 4) * groups;
    side[m][1] = w.scale_row(local0 + m * 16 + t.lane / 4 + 8) * groups;
  }
  GemmTotals v;
  UNROLL for (u32 m = 0; m < kWarpTiles; ++m) {
    UNROLL for (u32 n = 0; n < kWarpColumns; ++n) {
      UNROLL for (u32 i = 0; i < 4; ++i) v.v[m][n][i] = span.v[m][n][i] = 0;
    }
  }
  UNROLL for (u32 s = 0; s + 1 < kStages; ++s) gemm_fetch<Codes>(t, w, columns, memory, first + s, last, s);
  u16 scales[kWarpTiles][2];
  u16 biases[kWarpTiles][2];
  UNROLL for (u32 m = 0; m < kWarpTiles; ++m) {
    UNROLL for (u32 i = 0; i < 2; ++i) {
      scales[m][i] = matrix.scales[side[m][i] + (static_cast<u32>(first) >> per)];
      biases[m][i] = matrix.biases[side[m][i] + (static_cast<u32>(first) >> per)];
    }
  }
  u32 stage = 0;
  for (i64 block = first; block < last; ++block) {
    async_wait<kStages - 2>();
    barrier(t);
    gemm_fetch<Codes>(t, w, columns, memory, block + kStages - 1, last, (stage + kStages - 1) % kStages);
    f32 scale[kWarpTiles][2];
    f32 bias[kWarpTiles][2];
    const u32 next = static_cast<u32>(min_of(block + 1, last - 1)) >> per;
    UNROLL for (u32 m = 0; m < kWarpTiles; ++m) {
      UNROLL for (u32 i = 0; i < 2; ++i) {
        const f32 s = f32_of_bf16(scales[m][i]);
        scale[m][i] = Codes::scale(s);
        bias[m][i] = Codes::bias(s, f32_of_bf16(biases[m][i]));
        scales[m][i] = matrix.scales[side[m][i] + next];
        biases[m][i] = matrix.biases[side[m][i] + next];
      }
    }
    const Shared<u32> x = memory.columns + static_cast<i64>(stage) * kStageWords;
    const Shared<u32> codes = memory.weights + static_cast<i64>(stage) * kGemmRows * kRowWords;
    const Shared<f32> sums = memory.sums + static_cast<i64>(stage) * kGemmColumns;
    MmaA a[kWarpTiles][4];
    UNROLL for (u32 m = 0; m < kWarpTiles; ++m) {
      Codes upper;
      Codes lower;
      const u32 local = local0 + m * 16 + t.lane / 4;
      if (GemmStages<Codes>::kWeights) {
        upper.load_shared(codes + local * kRowWords, quarter);
        lower.load_shared(codes + (local + 8) * kRowWords, quarter);
      } else {
        upper.load(w.data(local), block, quarter);
        lower.load(w.data(local + 8), block, quarter);
      }
      UNROLL for (u32 j = 0; j < 4; ++j) {
        a[m][j].r[0] = upper.pair(0, j, quarter);
        a[m][j].r[1] = lower.pair(0, j, quarter);
        a[m][j].r[2] = upper.pair(1, j, quarter);
        a[m][j].r[3] = lower.pair(1, j, quarter);
      }
    }
    // Two tiles of columns at a time: four products under way.
    UNROLL for (u32 n0 = 0; n0 < kWarpColumns; n0 += 2) {
      u32x4 b[2][2];
      MmaC c[2][kWarpTiles];
      UNROLL for (u32 n = 0; n < 2; ++n) {
        const u32 column = column0 + (n0 + n) * 8 + t.lane / 4;
        b[n][0] = load4(x, swizzle(column, quarter));
        b[n][1] = load4(x, swizzle(column, 4 + quarter));
        UNROLL for (u32 m = 0; m < kWarpTiles; ++m) c[n][m].r[0] = c[n][m].r[1] = c[n][m].r[2] =
            c[n][m].r[3] = 0;
      }
      UNROLL for (u32 j = 0; j < 4; ++j) {
        UNROLL for (u32 n = 0; n < 2; ++n) {
          const u32x4 pairs = b[n][j / 2];
          MmaB operand;
          operand.r[0] = j % 2 == 0 ? pairs.x : pairs.z;
          operand.r[1] = j % 2 == 0 ? pairs.y : pairs.w;
          UNROLL for (u32 m = 0; m < kWarpTiles; ++m) mma_f16(t, c[n][m], a[m][j], operand);
        }
      }
      UNROLL for (u32 n = 0; n < 2; ++n) {
        const u32 at = column0 + (n0 + n) * 8 + quarter * 2;
        const f32 sum0 = sums[at];
        const f32 sum1 = sums[at + 1];
        UNROLL for (u32 m = 0; m < kWarpTiles; ++m) {
          add_block(v.v[m][n0 + n], c[n][m], scale[m][0], bias[m][0], scale[m][1], bias[m][1], sum0, sum1);
        }
      }
    }
    if (block % kSegmentBlocks == kSegmentBlocks - 1 || block + 1 == last) {
      const Shared<f32> downs = memory.downs + (block / kSegmentBlocks % 2) * kGemmColumns;
      UNROLL for (u32 n = 0; n < kWarpColumns; ++n) {
        const f32 d0 = downs[column0 + n * 8 + quarter * 2];
        const f32 d1 = downs[column0 + n * 8 + quarter * 2 + 1];
        UNROLL for (u32 m = 0; m < kWarpTiles; ++m) {
          UNROLL for (u32 i = 0; i < 4; ++i) {
            span.v[m][n][i] += v.v[m][n][i] * (i % 2 == 0 ? d0 : d1);
            v.v[m][n][i] = 0;
          }
        }
      }
    }
    stage = stage + 1 == kStages ? 0 : stage + 1;
  }
  async_wait<0>();
  barrier(t);
}

struct GemmArgs {
  Weights w;
  Prepared x;     // [rows]
  Global<f32> y;  // [rows][out]
  i64 rows;
  i32 silu;
  f32 div;
};

/// Groups (outputs, rows).
template <class Codes>
DEVICE_FUNCTION void dense_gemm(const Thread& t, const GemmArgs& args, const GemmMemory& memory) {
  const i64 first = static_cast<i64>(t.group_y) * kGemmColumns;
  GemmColumns columns;
  columns.x = args.x;
  columns.in = args.w.in;
  UNROLL for (u32 i = 0; i < 2; ++i) columns.rows[i] = min_of(first + t.index / 8 + 32 * i, args.rows - 1);
  columns.side = min_of(first + t.index % kGemmColumns, args.rows - 1);
  const GemmRows w = rows_of(t, args.w);
  const u32 local0 = (t.simd % 4) * 32;
  const u32 column0 = t.simd / 4 * 32;
  const i64 blocks = columns.in / kBlock;
  for (i64 block = 0; block < blocks; block += kSpanBlocks) {
    const i64 end = min_of(block + kSpanBlocks, blocks);
    GemmTotals span;
    gemm_span<Codes>(t, w, local0, column0, columns, memory, block, end, span);
    UNROLL for (u32 m = 0; m < kWarpTiles; ++m) {
      UNROLL for (u32 n = 0; n < kWarpColumns; ++n) {
        UNROLL for (u32 i = 0; i < 4; ++i) {
          const i64 output = w.row_a + local0 + m * 16 + t.lane / 4 + (i / 2) * 8;
          const i64 row = first + column0 + n * 8 + t.lane % 4 * 2 + i % 2;
          if (output >= w.a.out || row >= args.rows) continue;
          // Spans are added where the result goes: a thread reads what it wrote itself.
          const i64 at = row * w.a.out + output;
          f32 value = span.v[m][n][i];
          if (block > 0) value = args.y[at] + value;
          if (end == blocks && args.silu != 0) value = silu(value / args.div);
          args.y[at] = value;
        }
      }
    }
  }
}

#define SLUICE_GEMM_MEMORY(Codes)                             \
  SHARED(u32, stage, GemmStages<Codes>::kCount* kStageWords); \
  SHARED(u32, weights, GemmStages<Codes>::kWeightWords);      \
  SHARED(f32, sums, GemmStages<Codes>::kCount* kGemmColumns); \
  SHARED(f32, downs, 2 * kGemmColumns);                       \
  const GemmMemory memory = {stage, weights, sums, downs}

#define SLUICE_GEMM(name, Codes)                \
  KERNEL(gemm_##name, GemmArgs, kGemmThreads) { \
    KERNEL_THREAD(t);                           \
    SLUICE_GEMM_MEMORY(Codes);                  \
    dense_gemm<Codes>(t, args, memory);         \
  }
SLUICE_GEMM(q4, CodesQ4)
SLUICE_GEMM(q8, CodesQ8)
SLUICE_GEMM(q3, CodesQ3)
SLUICE_GEMM(q2, CodesQ2)
#undef SLUICE_GEMM

struct ExpertTilesArgs {
  Global<const u32> begin;  // [entries + 1]
  Global<u32> tile_entry;   // [tiles]: a tile is up to `columns` pairs of one entry
  Global<u32> tile_first;   // [tiles]: its first pair
  Global<u32> count;        // [1]
  i64 entries;
  u32 columns;
};
constexpr u32 kTilesThreads = 1024;
/// One group.
KERNEL(expert_tiles, ExpertTilesArgs, kTilesThreads) {
  KERNEL_THREAD(t);
  SHARED(u32, before, kTilesThreads);
  u32 done = 0;
  for (i64 first = 0; first < args.entries; first += kTilesThreads) {
    const i64 entry = first + t.index;
    u32 tiles = 0;
    if (entry < args.entries) {
      tiles = (args.begin[entry + 1] - args.begin[entry] + args.columns - 1) / args.columns;
    }
    before[t.index] = tiles;
    barrier(t);
    for (u32 step = 1; step < kTilesThreads; step *= 2) {
      const u32 add = t.index >= step ? before[t.index - step] : 0;
      barrier(t);
      before[t.index] += add;
      barrier(t);
    }
    const u32 at = done + before[t.index] - tiles;
    for (u32 i = 0; i < tiles; ++i) {
      args.tile_entry[at + i] = static_cast<u32>(entry);
      args.tile_first[at + i] = args.begin[entry] + i * args.columns;
    }
    done += before[kTilesThreads - 1];
    barrier(t);
  }
  if (t.index == 0) args.count[0] = done;
}

struct ExpertsGemmArgs {
  ExpertsArgs experts;
  Prepared x;  // gate and up: [rows of the step]; down: [pairs]
  Global<const u32> tile_entry, tile_first, tiles;
};

/// A tile's columns are its pairs.
DEVICE_FUNCTION GemmColumns pair_columns(const Thread& t, const ExpertsGemmArgs& args, u32 first, u32 end,
                                         bool down, i64 in) {
  const u32 base = args.experts.begin[0];
  GemmColumns columns;
  columns.x = args.x;
  columns.in = in;
  UNROLL for (u32 i = 0; i < 3; ++i) {
    const u32 pair = min_of(first + (i < 2 ? t.index / 8 + 32 * i : t.index % kGemmColumns), end - 1);
    const i64 row = down ? static_cast<i64>(pair - base) : static_cast<i64>(args.experts.pair_row[pair]);
    if (i < 2) {
      columns.rows[i] = row;
    } else {
      columns.side = row;
    }
  }
  return columns;
}

/// Groups (64 outputs of gate and of up, tiles). Inputs of one span at most.
template <class Codes>
DEVICE_FUNCTION void experts_gemm_gate_up(const Thread& t, const ExpertsGemmArgs& args, i32 format,
                                          const GemmMemory& memory) {
  if (t.group_y >= args.tiles[0]) return;
  const ExpertsArgs& e = args.experts;
  const u32 number = args.tile_entry[t.group_y];
  const u64 entry = e.entries[number];
  if (format_of(entry) != format) return;
  const u32 first = args.tile_first[t.group_y];
  const u32 end = e.begin[number + 1];
  const GemmRows w = gate_up_rows(t, e, entry);
  const u32 local0 = (t.simd % 4) * 32;
  const u32 column0 = t.simd / 4 * 32;
  const bool is_up = local0 >= w.split;
  GemmTotals total;
  gemm_span<Codes>(t, w, local0, column0, pair_columns(t, args, first, end, false, e.hidden), memory, 0,
                   e.hidden / kBlock, total);
  // The up half goes over to the gate half through the stages, [column][64 outputs].
  UNROLL for (u32 turn = 0; turn < 2; ++turn) {
    UNROLL for (u32 m = 0; m < kWarpTiles; ++m) {
      UNROLL for (u32 n = 0; n < kWarpColumns; ++n) {
        UNROLL for (u32 i = 0; i < 4; ++i) {
          const u32 output = local0 % w.split + m * 16 + t.lane / 4 + (i / 2) * 8;
          const u32 column = column0 + n * 8 + t.lane % 4 * 2 + i % 2;
          const u32 place = column * (kGemmRows / 2) + output;
          if (turn == 0) {
            if (is_up) memory.columns[place] = bits_of_f32(total.v[m][n][i]);
          } else if (!is_up) {
            const i64 to = w.row_a + output;
            const u32 pair = first + column;
            if (to >= e.inter || pair >= end) continue;
            e.hidden_out[static_cast<i64>(pair - e.begin[0]) * e.inter + to] =
                silu(total.v[m][n][i]) * f32_of_bits(memory.columns[place]);
          }
        }
      }
    }
    barrier(t);
  }
}

/// Groups (128 outputs, tiles). Inputs of one span at most.
template <class Codes>
DEVICE_FUNCTION void experts_gemm_down(const Thread& t, const ExpertsGemmArgs& args, i32 format,
                                       const GemmMemory& memory) {
  if (t.group_y >= args.tiles[0]) return;
  const ExpertsArgs& e = args.experts;
  const u32 number = args.tile_entry[t.group_y];
  const u64 entry = e.entries[number];
  if (format_of(entry) != format) return;
  const u32 first = args.tile_first[t.group_y];
  const u32 end = e.begin[number + 1];
  const GemmRows w = rows_of(t, expert_matrix(entry, 2, e));
  const u32 local0 = (t.simd % 4) * 32;
  const u32 column0 = t.simd / 4 * 32;
  GemmTotals total;
  gemm_span<Codes>(t, w, local0, column0, pair_columns(t, args, first, end, true, e.inter), memory, 0,
                   e.inter / kBlock, total);
  UNROLL for (u32 n = 0; n < kWarpColumns; ++n) {
    UNROLL for (u32 i = 0; i < 2; ++i) {
      const u32 pair = first + column0 + n * 8 + t.lane % 4 * 2 + i;
      if (pair >= end) continue;
      const i64 to = static_cast<i64>(e.pair_row[pair]) * e.slots + e.pair_slot[pair];
      UNROLL for (u32 m = 0; m < kWarpTiles; ++m) {
        UNROLL for (u32 half = 0; half < 2; ++half) {
          const i64 output = w.row_a + local0 + m * 16 + t.lane / 4 + half * 8;
          if (output < e.hidden) e.y[to * e.hidden + output] = total.v[m][n][2 * half + i];
        }
      }
    }
  }
}

#define SLUICE_EXPERTS_GEMM(name, Codes, format)                       \
  KERNEL(experts_gemm_gate_up_##name, ExpertsGemmArgs, kGemmThreads) { \
    KERNEL_THREAD(t);                                                  \
    SLUICE_GEMM_MEMORY(Codes);                                         \
    experts_gemm_gate_up<Codes>(t, args, format, memory);              \
  }                                                                    \
  KERNEL(experts_gemm_down_##name, ExpertsGemmArgs, kGemmThreads) {    \
    KERNEL_THREAD(t);                                                  \
    SLUICE_GEMM_MEMORY(Codes);                                         \
    experts_gemm_down<Codes>(t, args, format, memory);                 \
  }
SLUICE_EXPERTS_GEMM(q4, CodesQ4, kFormatQ4)
SLUICE_EXPERTS_GEMM(q8, CodesQ8, kFormatQ8)
SLUICE_EXPERTS_GEMM(q3, CodesQ3, kFormatQ3)
SLUICE_EXPERTS_GEMM(q2, CodesQ2, kFormatQ2)
#undef SLUICE_EXPERTS_GEMM
#undef SLUICE_GEMM_MEMORY

}  // namespace sluice::kernels

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
/// A quarter of a SIMD group (8 lanes would do; four read like a matvec's) takes a segment of a row.
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
constexpr u32 kStageWords = kGemmColumns * 32;

/// What a group multiplies: 64 columns, each a prepared row.
struct GemmColumns {
  Prepared x;
  i64 in;
  i64 rows[2];  // the prepared rows of the two columns that this thread brings in, or none below 0
  i64 sum_row;  // of column number t.index, for the first 64 threads
};

/// Accumulators of a SIMD group: 32 outputs by 32 columns.
struct GemmTotals {
  f32 v[kWarpTiles][kWarpColumns][4];
};

DEVICE_FUNCTION u32 swizzle(u32 column, u32 chunk) {
  return column * 32 + (chunk ^ ((column & 1U) * 4)) * 4;
}

/// row0: the first of the SIMD group's 32 outputs in `w`; column0: the first of its 32 columns.
/// stage: [2][kStageWords] words; stage_sums: [2][kGemmColumns].
template <class Codes>
DEVICE_FUNCTION void gemm(const Thread& t, const Weights& w, i64 row0, u32 column0,
                          const GemmColumns& columns, Shared<u32> stage, Shared<f32> stage_sums,
                          Shared<f32> stage_downs, GemmTotals& total) {
  const u32 quarter = t.lane % 4;
  const i64 blocks = columns.in / kBlock;
  const i64 segments = segments_of(columns.in);
  const i64 groups = w.in / w.group;
  const i64 per = w.group / kBlock;
  i64 row[kWarpTiles][2];
  UNROLL
  for (u32 m = 0; m < kWarpTiles; ++m) {
    row[m][0] = min_of(row0 + m * 16 + t.lane / 4, w.out - 1);
    row[m][1] = min_of(row0 + m * 16 + t.lane / 4 + 8, w.out - 1);
  }
  GemmTotals v;
  UNROLL
  for (u32 m = 0; m < kWarpTiles; ++m) {
    UNROLL
    for (u32 n = 0; n < kWarpColumns; ++n) {
      UNROLL
      for (u32 i = 0; i < 4; ++i) v.v[m][n][i] = total.v[m][n][i] = 0;
    }
  }
  Codes codes[kWarpTiles][2];
  u16 scales[kWarpTiles][2];
  u16 biases[kWarpTiles][2];
  u32x4 chunk[2];
  f32 sum = 0;
  f32 down = 0;
  const u32 chunk_column = t.index / 8;  // and 32 further on
  const u32 chunk_place = t.index % 8;
  for (i64 block = -1; block < blocks; ++block) {
    // While this block is multiplied, the next is on its way.
    const i64 next = block + 1;
    Codes now[kWarpTiles][2];
    u16 now_scales[kWarpTiles][2];
    u16 now_biases[kWarpTiles][2];
    UNROLL
    for (u32 m = 0; m < kWarpTiles; ++m) {
      UNROLL
      for (u32 i = 0; i < 2; ++i) {
        if (block >= 0) {
          now[m][i] = codes[m][i];
          now_scales[m][i] = scales[m][i];
          now_biases[m][i] = biases[m][i];
        }
        if (next < blocks) {
          codes[m][i].load(w.data + row[m][i] * w.row_bytes, next, quarter);
          scales[m][i] = w.scales[row[m][i] * groups + next / per];
          biases[m][i] = w.biases[row[m][i] * groups + next / per];
        }
      }
    }
    if (next < blocks) {
      UNROLL
      for (u32 i = 0; i < 2; ++i) {
        chunk[i].x = chunk[i].y = chunk[i].z = chunk[i].w = 0;
        if (columns.rows[i] >= 0) {
          chunk[i] = load4(columns.x.words, (columns.rows[i] * blocks + next) * 32 + chunk_place * 4);
        }
      }
      if (t.index < kGemmColumns) {
        sum = columns.sum_row >= 0 ? columns.x.sums[columns.sum_row * blocks + next] : 0.0F;
        if (next % kSegmentBlocks == 0) {
          down = columns.sum_row >= 0 ? columns.x.downs[columns.sum_row * segments + next / kSegmentBlocks]
                                      : 0.0F;
        }
      }
    }
    if (block >= 0) {
      const Shared<u32> x = stage + (block % 2) * kStageWords;
      const Shared<f32> sums = stage_sums + (block % 2) * kGemmColumns;
      u32x4 b[kWarpColumns][2];
      UNROLL
      for (u32 n = 0; n < kWarpColumns; ++n) {
        const u32 column = column0 + n * 8 + t.lane / 4;
        b[n][0] = load4(x, swizzle(column, quarter));
        b[n][1] = load4(x, swizzle(column, 4 + quarter));
      }
      UNROLL
      for (u32 m = 0; m < kWarpTiles; ++m) {
        MmaA a[4];
        UNROLL
        for (u32 j = 0; j < 4; ++j) {
          a[j].r[0] = half2_of_codes(now[m][0].pair(0, j, quarter));
          a[j].r[1] = half2_of_codes(now[m][1].pair(0, j, quarter));
          a[j].r[2] = half2_of_codes(now[m][0].pair(1, j, quarter));
          a[j].r[3] = half2_of_codes(now[m][1].pair(1, j, quarter));
        }
        MmaC c[kWarpColumns];
        UNROLL
        for (u32 n = 0; n < kWarpColumns; ++n) c[n].r[0] = c[n].r[1] = c[n].r[2] = c[n].r[3] = 0;
        UNROLL
        for (u32 j = 0; j < 4; ++j) {
          UNROLL
          for (u32 n = 0; n < kWarpColumns; ++n) {
            const u32x4 pairs = b[n][j / 2];
            MmaB operand;
            operand.r[0] = j % 2 == 0 ? pairs.x : pairs.z;
            operand.r[1] = j % 2 == 0 ? pairs.y : pairs.w;
            mma_f16(t, c[n], a[j], operand);
          }
        }
        const f32 s0 = f32_of_bf16(now_scales[m][0]);
        const f32 s1 = f32_of_bf16(now_scales[m][1]);
        const f32 b0 = Codes::bias(s0, f32_of_bf16(now_biases[m][0]));
        const f32 b1 = Codes::bias(s1, f32_of_bf16(now_biases[m][1]));
        UNROLL
        for (u32 n = 0; n < kWarpColumns; ++n) {
          const u32 at = column0 + n * 8 + quarter * 2;
          add_block(v.v[m][n], c[n], Codes::scale(s0), b0, Codes::scale(s1), b1, sums[at], sums[at + 1]);
        }
      }
      if (block % kSegmentBlocks == kSegmentBlocks - 1 || next == blocks) {
        const Shared<f32> downs = stage_downs + (block / kSegmentBlocks % 2) * kGemmColumns;
        UNROLL
        for (u32 n = 0; n < kWarpColumns; ++n) {
          const f32 d0 = downs[column0 + n * 8 + quarter * 2];
          const f32 d1 = downs[column0 + n * 8 + quarter * 2 + 1];
          UNROLL
          for (u32 m = 0; m < kWarpTiles; ++m) {
            UNROLL
            for (u32 i = 0; i < 4; ++i) {
              total.v[m][n][i] += v.v[m][n][i] * (i % 2 == 0 ? d0 : d1);
              v.v[m][n][i] = 0;
            }
          }
        }
      }
    }
    if (next < blocks) {
      const Shared<u32> x = stage + (next % 2) * kStageWords;
      store4(x, swizzle(chunk_column, chunk_place), chunk[0]);
      store4(x, swizzle(chunk_column + 32, chunk_place), chunk[1]);
      if (t.index < kGemmColumns) {
        stage_sums[(next % 2) * kGemmColumns + t.index] = sum;
        if (next % kSegmentBlocks == 0) {
          stage_downs[(next / kSegmentBlocks % 2) * kGemmColumns + t.index] = down;
        }
      }
    }
    barrier(t);
  }
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
DEVICE_FUNCTION void dense_gemm(const Thread& t, const GemmArgs& args, Shared<u32> stage, Shared<f32> sums,
                                Shared<f32> downs) {
  const Weights w = args.w;
  const i64 first = static_cast<i64>(t.group_y) * kGemmColumns;
  GemmColumns columns;
  columns.x = args.x;
  columns.in = w.in;
  UNROLL
  for (u32 i = 0; i < 2; ++i) {
    const i64 row = first + t.index / 8 + 32 * i;
    columns.rows[i] = row < args.rows ? row : -1;
  }
  columns.sum_row = first + t.index < args.rows ? first + t.index : -1;
  const i64 row0 = static_cast<i64>(t.group_x) * kGemmRows + (t.simd % 4) * 32;
  const u32 column0 = t.simd / 4 * 32;
  GemmTotals total;
  gemm<Codes>(t, w, row0, column0, columns, stage, sums, downs, total);
  UNROLL
  for (u32 m = 0; m < kWarpTiles; ++m) {
    UNROLL
    for (u32 n = 0; n < kWarpColumns; ++n) {
      UNROLL
      for (u32 i = 0; i < 4; ++i) {
        const i64 output = row0 + m * 16 + t.lane / 4 + (i / 2) * 8;
        const i64 row = first + column0 + n * 8 + t.lane % 4 * 2 + i % 2;
        if (output >= w.out || row >= args.rows) continue;
        f32 value = total.v[m][n][i];
        if (args.silu != 0) value = silu(value / args.div);
        args.y[row * w.out + output] = value;
      }
    }
  }
}

#define SLUICE_GEMM(name, Codes)                            \
  KERNEL_RESIDENT(gemm_##name, GemmArgs, kGemmThreads, 2) { \
    KERNEL_THREAD(t);                                       \
    SHARED(u32, stage, 2 * kStageWords);                    \
    SHARED(f32, sums, 2 * kGemmColumns);                    \
    SHARED(f32, downs, 2 * kGemmColumns);                   \
    dense_gemm<Codes>(t, args, stage, sums, downs);         \
  }
SLUICE_GEMM(q4, CodesQ4)
SLUICE_GEMM(q8, CodesQ8)
SLUICE_GEMM(q3, CodesQ3)
SLUICE_GEMM(q2, CodesQ2)
#undef SLUICE_GEMM

struct ExpertTilesArgs {
  Global<const u32> begin;  // [entries + 1]
  Global<u32> tile_entry;   // [tiles]: a tile is up to 64 pairs of one entry
  Global<u32> tile_first;   // [tiles]: its first pair
  Global<u32> count;        // [1]
  i64 entries;
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
      tiles = (args.begin[entry + 1] - args.begin[entry] + kGemmColumns - 1) / kGemmColumns;
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
      args.tile_first[at + i] = args.begin[entry] + i * kGemmColumns;
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
  UNROLL
  for (u32 i = 0; i < 3; ++i) {
    const u32 pair = first + (i < 2 ? t.index / 8 + 32 * i : t.index);
    i64 row = -1;
    if (pair < end && (i < 2 || t.index < kGemmColumns)) {
      row = down ? static_cast<i64>(pair - base) : static_cast<i64>(args.experts.pair_row[pair]);
    }
    if (i < 2) {
      columns.rows[i] = row;
    } else {
      columns.sum_row = row;
    }
  }
  return columns;
}

/// Groups (64 outputs of gate and of up, tiles).
template <class Codes>
DEVICE_FUNCTION void experts_gemm_gate_up(const Thread& t, const ExpertsGemmArgs& args, i32 format,
                                          Shared<u32> stage, Shared<f32> sums, Shared<f32> downs) {
  if (t.group_y >= args.tiles[0]) return;
  const ExpertsArgs& e = args.experts;
  const u32 number = args.tile_entry[t.group_y];
  const u64 entry = e.entries[number];
  if (format_of(entry) != format) return;
  const u32 first = args.tile_first[t.group_y];
  const u32 end = e.begin[number + 1];
  const bool is_up = t.simd % 4 >= 2;
  const Weights w = expert_matrix(entry, is_up ? 1 : 0, e.hidden, e.inter, e.group);
  const i64 row0 = static_cast<i64>(t.group_x) * (kGemmRows / 2) + (t.simd % 2) * 32;
  const u32 column0 = t.simd / 4 * 32;
  GemmTotals total;
  gemm<Codes>(t, w, row0, column0, pair_columns(t, args, first, end, false, e.hidden), stage, sums, downs,
              total);
  // The up half goes over to the gate half through the stages, [column][64 outputs].
  UNROLL
  for (u32 turn = 0; turn < 2; ++turn) {
    UNROLL
    for (u32 m = 0; m < kWarpTiles; ++m) {
      UNROLL
      for (u32 n = 0; n < kWarpColumns; ++n) {
        UNROLL
        for (u32 i = 0; i < 4; ++i) {
          const u32 output = (t.simd % 2) * 32 + m * 16 + t.lane / 4 + (i / 2) * 8;
          const u32 column = column0 + n * 8 + t.lane % 4 * 2 + i % 2;
          const u32 place = column * (kGemmRows / 2) + output;
          if (turn == 0) {
            if (is_up) stage[place] = bits_of_f32(total.v[m][n][i]);
          } else if (!is_up) {
            const i64 to = static_cast<i64>(t.group_x) * (kGemmRows / 2) + output;
            const u32 pair = first + column;
            if (to >= e.inter || pair >= end) continue;
            e.hidden_out[static_cast<i64>(pair - e.begin[0]) * e.inter + to] =
                silu(total.v[m][n][i]) * f32_of_bits(stage[place]);
          }
        }
      }
    }
    barrier(t);
  }
}

/// Groups (128 outputs, tiles).
template <class Codes>
DEVICE_FUNCTION void experts_gemm_down(const Thread& t, const ExpertsGemmArgs& args, i32 format,
                                       Shared<u32> stage, Shared<f32> sums, Shared<f32> downs) {
  if (t.group_y >= args.tiles[0]) return;
  const ExpertsArgs& e = args.experts;
  const u32 number = args.tile_entry[t.group_y];
  const u64 entry = e.entries[number];
  if (format_of(entry) != format) return;
  const u32 first = args.tile_first[t.group_y];
  const u32 end = e.begin[number + 1];
  const Weights w = expert_matrix(entry, 2, e.hidden, e.inter, e.group);
  const i64 row0 = static_cast<i64>(t.group_x) * kGemmRows + (t.simd % 4) * 32;
  const u32 column0 = t.simd / 4 * 32;
  GemmTotals total;
  gemm<Codes>(t, w, row0, column0, pair_columns(t, args, first, end, true, e.inter), stage, sums, downs,
              total);
  UNROLL
  for (u32 n = 0; n < kWarpColumns; ++n) {
    UNROLL
    for (u32 i = 0; i < 2; ++i) {
      const u32 pair = first + column0 + n * 8 + t.lane % 4 * 2 + i;
      if (pair >= end) continue;
      const i64 to = static_cast<i64>(e.pair_row[pair]) * e.slots + e.pair_slot[pair];
      UNROLL
      for (u32 m = 0; m < kWarpTiles; ++m) {
        UNROLL
        for (u32 half = 0; half < 2; ++half) {
          const i64 output = row0 + m * 16 + t.lane / 4 + half * 8;
          if (output < e.hidden) e.y[to * e.hidden + output] = total.v[m][n][2 * half + i];
        }
      }
    }
  }
}

#define SLUICE_EXPERTS_GEMM(name, Codes, format)                                   \
  KERNEL_RESIDENT(experts_gemm_gate_up_##name, ExpertsGemmArgs, kGemmThreads, 2) { \
    KERNEL_THREAD(t);                                                              \
    SHARED(u32, stage, 2 * kStageWords);                                           \
    SHARED(f32, sums, 2 * kGemmColumns);                                           \
    SHARED(f32, downs, 2 * kGemmColumns);                                          \
    experts_gemm_gate_up<Codes>(t, args, format, stage, sums, downs);              \
  }                                                                                \
  KERNEL_RESIDENT(experts_gemm_down_##name, ExpertsGemmArgs, kGemmThreads, 2) {    \
    KERNEL_THREAD(t);                                                              \
    SHARED(u32, stage, 2 * kStageWords);                                           \
    SHARED(f32, sums, 2 * kGemmColumns);                                           \
    SHARED(f32, downs, 2 * kGemmColumns);                                          \
    experts_gemm_down<Codes>(t, args, format, stage, sums, downs);                 \
  }
SLUICE_EXPERTS_GEMM(q4, CodesQ4, kFormatQ4)
SLUICE_EXPERTS_GEMM(q8, CodesQ8, kFormatQ8)
SLUICE_EXPERTS_GEMM(q3, CodesQ3, kFormatQ3)
SLUICE_EXPERTS_GEMM(q2, CodesQ2, kFormatQ2)
#undef SLUICE_EXPERTS_GEMM

}  // namespace sluice::kernels

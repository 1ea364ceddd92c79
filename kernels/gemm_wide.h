// gemm.h for devices that multiply wide (dialect/wide.h): 128 outputs by 128 columns a group, the same sums
// in the same order.
//
// Columns are rounded beforehand into tiles of 64, so that a block of one comes to the group's memory by one
// copy; a pair of an expert is a column of its own. Weights and scales go straight to the lanes that multiply
// them. Each four of SIMD groups has one half of its columns multiplied while it scales the other. An
// output's span lies in the group's memory and is touched once a segment.
#pragma once

#include "gemm.h"

#define SLUICE_GEMM_WIDE_KERNELS(X) \
  X(prepare_wide)                   \
  X(wide_q4)                        \
  X(wide_q8)                        \
  X(wide_q3)                        \
  X(wide_q2)                        \
  X(experts_wide_gate_up_q4)        \
  X(experts_wide_gate_up_q8)        \
  X(experts_wide_gate_up_q3)        \
  X(experts_wide_gate_up_q2)        \
  X(experts_wide_down_q4)           \
  X(experts_wide_down_q8)           \
  X(experts_wide_down_q3)           \
  X(experts_wide_down_q2)

namespace sluice::kernels {

constexpr u32 kWideTiles = kGemmColumns / 8;  // of columns
/// A block of a tile of columns as it lies in memory: the columns (wide_place), their sums as rounded and
/// scaled, and what undoes the scale of their segment (both as side_place has them).
constexpr u32 kWideSums = kStageWords;
constexpr u32 kWideDowns = kWideSums + kGemmColumns;
constexpr u32 kWideWords = kWideDowns + kGemmColumns;

/// What a lane wants of two tiles is four neighbours.
DEVICE_FUNCTION u32 side_place(u32 column) {
  return column / 16 * 16 + column % 8 / 2 * 4 + column / 8 % 2 * 2 + column % 2;
}

/// Which rows the 64 columns of tile number `tile` are.
struct WideRows {
  // Of experts' pairs, two tiles to each of expert_tiles; none: rows in order.
  Global<const u32> tile_entry, tile_first, tiles, begin;
  Global<const u32> pair_row;  // none: pairs in order
  i64 rows;
  /// -1 for a place without a row.
  DEVICE_FUNCTION i64 row(u32 tile, u32 column) const {
    if (tile_entry == nullptr) {
      const i64 at = static_cast<i64>(tile) * kGemmColumns + column;
      return at < rows ? at : -1;
    }
    const u32 pair = tile_first[tile / 2] + tile % 2 * kGemmColumns + column;
    if (pair >= begin[tile_entry[tile / 2] + 1]) return -1;
    return pair_row == nullptr ? pair - begin[0] : pair_row[pair];
  }
};
struct PrepareWideArgs {
  Global<const f32> x;  // [..][in]
  Global<u32> to;       // [tiles][in / 64][kWideWords]
  WideRows from;
  i64 in;
};
constexpr u32 kPrepareWideThreads = 4 * kGemmColumns;
/// Groups (segments, tiles). Four lanes round a segment of a row, as in load_columns.
KERNEL(prepare_wide, PrepareWideArgs, kPrepareWideThreads) {
  KERNEL_THREAD(t);
  SHARED(u32, sides, kSegmentBlocks * kGemmColumns);
  SHARED(u32, downs, kGemmColumns);
  // A tile that has no rows is not read.
  if (args.from.tile_entry != nullptr &&
      (t.group_y >= 2 * args.from.tiles[0] || args.from.row(t.group_y, 0) < 0)) {
    return;
  }
  const u32 column = t.index / 4;
  const u32 quarter = t.lane % 4;
  const i64 row = args.from.row(t.group_y, column);
  const bool present = row >= 0;
  const u32 blocks = blocks_of(args.in, t.group_x);
  const Global<const f32> x =
      args.x + ((present ? row : 0) * args.in + static_cast<i64>(t.group_x) * kSegment);
  f32 values[kSegmentBlocks][16];
  f32 most = 0;
  UNROLL
  for (u32 b = 0; b < kSegmentBlocks; ++b) load_block(x, present && b < blocks, b, quarter, values[b], most);
  most = max_f32(most, simd_shuffle_xor(t, most, 1));
  most = max_f32(most, simd_shuffle_xor(t, most, 2));
  const PowerOfTwo scale = scale_for(most);
  const Global<u32> to = args.to + (static_cast<i64>(t.group_y) * (args.in / kBlock) +
                                    static_cast<i64>(t.group_x) * kSegmentBlocks) *
                                       kWideWords;
  UNROLL
  for (u32 b = 0; b < kSegmentBlocks; ++b) {
    BlockColumns<1> columns;
    f32 sum = round_block<1>(values[b], scale.up, columns);
    sum += simd_shuffle_xor(t, sum, 1);
    sum += simd_shuffle_xor(t, sum, 2);
    // A chunk has a word of each quarter: the four lanes turn two times four words about.
    u32 w[2][4];
    UNROLL
    for (u32 h = 0; h < 2; ++h) {
      UNROLL
      for (u32 i = 0; i < 4; ++i) w[h][i] = columns.pair[0][4 * h + i];
      swap_halves(t, 1, w[h][0], w[h][1]);
      swap_halves(t, 1, w[h][2], w[h][3]);
      swap_halves(t, 2, w[h][0], w[h][2]);
      swap_halves(t, 2, w[h][1], w[h][3]);
    }
    // A lane's two chunks are 32 bytes: two lanes write both of one, then of the other, so that the memory
    // sees them whole.
    const bool turned = column % 2 != 0;
    u32 low[4];
    u32 high[4];
    UNROLL
    for (u32 i = 0; i < 4; ++i) {
      low[i] = turned ? w[1][i] : w[0][i];
      high[i] = turned ? w[0][i] : w[1][i];
      swap_halves(t, 1, low[i], high[i]);
    }
    UNROLL
    for (u32 h = 0; h < 2; ++h) {
      const u32 sector = (2 * (quarter / 2 * 2 + h)) ^ (column % 8 / 2 * 2);
      u32x4 chunk;
      chunk.x = h == 0 ? low[0] : high[0];
      chunk.y = h == 0 ? low[1] : high[1];
      chunk.z = h == 0 ? low[2] : high[2];
      chunk.w = h == 0 ? low[3] : high[3];
      if (b < blocks) store4(to, b * kWideWords + column * 32 + (sector + quarter % 2) * 4, chunk);
    }
    if (quarter == 0) sides[b * kGemmColumns + side_place(column)] = bits_of_f32(sum);
  }
  if (quarter == 0) downs[side_place(column)] = bits_of_f32(scale.down);
  barrier(t);
  const u32 b = t.index / kGemmColumns;
  const u32 place = t.index % kGemmColumns;
  if (b < blocks) {
    to[b * kWideWords + kWideSums + place] = sides[t.index];
    to[b * kWideWords + kWideDowns + place] = downs[place];
  }
}

constexpr u32 kWideColumns = 2 * kGemmColumns;  // of a group: two tiles
constexpr u32 kWideStages = kSegmentBlocks;
constexpr u32 kWideAhead = 2;                                   // blocks that are filled ahead
constexpr u32 kWideHalfWords = (kWideWords + 255) / 256 * 256;  // columns begin at multiples of 1 KiB
constexpr u32 kWideSpan = kWideColumns * kGemmRows;             // words
constexpr u32 kWideLarge = kWideStages * 2 * kWideHalfWords + kWideSpan;

/// A thread's outputs of one half, of rows 16 t.simd + t.lane / 4 and + 8 of the group's 128.
struct WideTotals {
  f32 v[kWideTiles][4];
};

/// A group's memory, and what comes through it.
struct WideMemory {
  // [kWideStages][2][kWideHalfWords], then what spans come to: [2][kWideTiles][threads][4]
  Shared<u32> stages;
  StageRing<kWideStages> ring;
  Global<const u32> columns;  // of the two tiles
  u32 blocks;
  bool two;  // tiles there are
};
DEVICE_FUNCTION Shared<u32> wide_stage(const WideMemory& memory, u32 place, u32 half) {
  return memory.stages + (place * 2 + half) * kWideHalfWords;
}
DEVICE_FUNCTION u32 wide_span_place(u32 half, u32 n, u32 thread) {
  return kWideStages * 2 * kWideHalfWords + ((half * kWideTiles + n) * kGemmThreads + thread) * 4;
}

/// Segment `segment`'s block `place`, which has a stage of its own.
DEVICE_FUNCTION void wide_fill(const Thread& t, const WideMemory& memory, u32 segment, u32 place) {
  const u32 block = segment * kSegmentBlocks + place;
  if (t.index == 0 && block < memory.blocks) {
    ring_open(memory.ring, place, segment, memory.two ? 2 * kWideWords : kWideWords);
    const Global<const u32> from = memory.columns + static_cast<i64>(block) * kWideWords;
    ring_fill(memory.ring, place, wide_stage(memory, place, 0), from, kWideWords);
    if (memory.two) {
      ring_fill(memory.ring, place, wide_stage(memory, place, 1),
                from + static_cast<i64>(memory.blocks) * kWideWords, kWideWords);
    }
  }
}
DEVICE_FUNCTION void wide_begin(const Thread& t, const WideMemory& memory) {
  ring_begin(t, memory.ring, kGemmThreads / 32);
  UNROLL for (u32 i = 0; i < kWideAhead; ++i) wide_fill(t, memory, 0, i);
}

/// A lane's share of the scales and biases of its two rows: those of block t.lane % 4 of a segment.
struct WideScales {
  u16 scale[2], bias[2];
  DEVICE_FUNCTION void load(const Global<const u16>* scales, const Global<const u16>* biases, u32 at) {
    UNROLL for (u32 i = 0; i < 2; ++i) {
      scale[i] = scales[i][at];
      bias[i] = biases[i][at];
    }
  }
};

/// What a thread works with from block to block.
template <class Codes>
struct WideState {
  Codes codes[2];  // of its two rows, of the block after the one that is in `a`
  WideA a;
  WideTotals total[2];  // of the segment, by halves
  WideTotals span[2];   // of the span's segments before
  u32 words[2];         // scales and biases: a row's, of block t.lane % 4 of the segment
};

template <class Codes>
DEVICE_FUNCTION void wide_unpack(u32 quarter, const Codes* codes, WideA& a) {
  UNROLL for (u32 j = 0; j < 4; ++j) {
    a.step[j].r[0] = codes[0].pair(0, j, quarter);
    a.step[j].r[1] = codes[1].pair(0, j, quarter);
    a.step[j].r[2] = codes[0].pair(1, j, quarter);
    a.step[j].r[3] = codes[1].pair(1, j, quarter);
  }
}

/// The sums of a half's columns, as a lane wants them.
struct WideSums {
  u32x4 of[kWideTiles / 2];  // of two tiles each
  DEVICE_FUNCTION void load(const Thread& t, Shared<u32> stage) {
    UNROLL for (u32 n = 0; n < kWideTiles / 2; ++n) {
      of[n] = load4(stage, kWideSums + n * 16 + t.lane % 4 * 4);
    }
  }
};

/// The scaled products of one half of a block are added to the thread's segment.
DEVICE_FUNCTION void wide_scale(const WideSums& sums, const WideC& c, const f32* scale, const f32* bias,
                                bool begins, WideTotals& total) {
  UNROLL for (u32 n = 0; n < kWideTiles; n += 2) {
    const u32x4 sum = sums.of[n / 2];
    if (begins) {
      UNROLL for (u32 i = 0; i < 4; ++i) total.v[n][i] = total.v[n + 1][i] = 0;
    }
    add_block(total.v[n], c.tile[n], scale[0], bias[0], scale[1], bias[1], f32_of_bits(sum.x),
              f32_of_bits(sum.y));
    add_block(total.v[n + 1], c.tile[n + 1], scale[0], bias[0], scale[1], bias[1], f32_of_bits(sum.z),
              f32_of_bits(sum.w));
  }
}

/// The thread's segment is added to its span.
DEVICE_FUNCTION void wide_add_segment(const Thread& t, Shared<u32> stage, const WideTotals& total,
                                      WideTotals& span) {
  UNROLL for (u32 n = 0; n < kWideTiles; n += 2) {
    const u32x4 down = load4(stage, kWideDowns + n * 8 + t.lane % 4 * 4);
    UNROLL for (u32 m = 0; m < 2; ++m) {
      const f32 down0 = f32_of_bits(m == 0 ? down.x : down.z);
      const f32 down1 = f32_of_bits(m == 0 ? down.y : down.w);
      span.v[n + m][0] += total.v[n + m][0] * down0;
      span.v[n + m][1] += total.v[n + m][1] * down1;
      span.v[n + m][2] += total.v[n + m][2] * down0;
      span.v[n + m][3] += total.v[n + m][3] * down1;
    }
  }
}

/// One block, number kPlace of its segment. The codes of the block after the next are read meanwhile: number
/// `next` from the rows' `from` on.
template <class Codes, bool kTwo, u32 kPlace>
DEVICE_FUNCTION void wide_block(const Thread& t, const WideMemory& memory, u32 segment,
                                const Global<const u8>* from, u32 next, WideState<Codes>& s) {
  const bool ends = kPlace + 1 == kSegmentBlocks || segment * kSegmentBlocks + kPlace + 1 == memory.blocks;
  ring_wait(t, memory.ring, kPlace, segment);
  f32 scale[2];
  f32 bias[2];
  UNROLL for (u32 half = 0; half < (kTwo ? 2 : 1); ++half) {
    const Shared<u32> stage = wide_stage(memory, kPlace, half);
    WideC c;
    wide_multiply(t, c, s.a, stage);
    if (half == 0) {
      wide_fill(t, memory, segment + (kPlace + kWideAhead) / kSegmentBlocks,
                (kPlace + kWideAhead) % kSegmentBlocks);
      UNROLL for (u32 i = 0; i < 2; ++i) {
        const u32 word = simd_shuffle(t, s.words[i], (t.lane & 28U) + kPlace);
        const f32 value = f32_of_bits(word << 16);
        scale[i] = Codes::scale(value);
        bias[i] = Codes::bias(value, f32_of_bits(word & 0xffff0000U));
      }
    }
    // Read before the wait, which nothing passes.
    WideSums sums;
    sums.load(t, stage);
    wide_wait<0>(t, c);
    if (half == (kTwo ? 1 : 0)) {
      wide_keep(s.a);
      wide_unpack(t.lane % 4, s.codes, s.a);
      UNROLL for (u32 i = 0; i < 2; ++i) s.codes[i].load(from[i], next, t.lane % 4);
    }
    wide_scale(sums, c, scale, bias, kPlace == 0, s.total[half]);
    if (ends) wide_add_segment(t, stage, s.total[half], s.span[half]);
  }
  ring_release(t, memory.ring, kPlace);
}

/// What `thread` has of tile n of a half.
DEVICE_FUNCTION void wide_totals(const WideMemory& memory, u32 half, u32 n, u32 thread, f32* v) {
  const u32x4 span = load4(memory.stages, wide_span_place(half, n, thread));
  v[0] = f32_of_bits(span.x);
  v[1] = f32_of_bits(span.y);
  v[2] = f32_of_bits(span.z);
  v[3] = f32_of_bits(span.w);
}
/// The thread's span is added to those before it, where wide_totals looks; the next begins.
template <bool kTwo>
DEVICE_FUNCTION void wide_end_span(const Thread& t, const WideMemory& memory, bool first, WideTotals* span) {
  UNROLL for (u32 half = 0; half < (kTwo ? 2 : 1); ++half) {
    UNROLL for (u32 n = 0; n < kWideTiles; ++n) {
      f32 before[4] = {0, 0, 0, 0};
      if (!first) wide_totals(memory, half, n, t.index, before);
      f32* v = span[half].v[n];
      u32x4 sum;
      sum.x = bits_of_f32(before[0] + v[0]);
      sum.y = bits_of_f32(before[1] + v[1]);
      sum.z = bits_of_f32(before[2] + v[2]);
      sum.w = bits_of_f32(before[3] + v[3]);
      store4(memory.stages, wide_span_place(half, n, t.index), sum);
      v[0] = v[1] = v[2] = v[3] = 0;
    }
  }
}

/// The sums of the tiles: each thread's are where wide_totals looks. Both matrices of w have the same inputs.
template <class Codes, bool kTwo>
DEVICE_FUNCTION void wide_sums_of(const Thread& t, const GemmRows& w, const WideMemory& memory) {
  const u32 quarter = t.lane % 4;
  const u32 local = t.simd * 16 + t.lane / 4;
  const u32 per = w.a.per;
  const u32 last_block = memory.blocks - 1;
  const Global<const u8> row[2] = {w.data(local), w.data(local + 8)};
  Global<const u16> scales_at[2];
  Global<const u16> biases_at[2];
  UNROLL for (u32 i = 0; i < 2; ++i) {
    const i64 side = w.scale_row(local + 8 * i) * w.a.groups;
    scales_at[i] = (local < w.split ? w.a.scales : w.b.scales) + side;
    biases_at[i] = (local < w.split ? w.a.biases : w.b.biases) + side;
  }
  WideState<Codes> s;
  UNROLL for (u32 i = 0; i < 2; ++i) s.codes[i].load(row[i], 0, quarter);
  WideScales scales;
  scales.load(scales_at, biases_at, min_of(quarter, last_block) >> per);
  wide_begin(t, memory);
  wide_unpack(quarter, s.codes, s.a);
  UNROLL for (u32 i = 0; i < 2; ++i) s.codes[i].load(row[i], min_of(1U, last_block), quarter);
  UNROLL for (u32 half = 0; half < 2; ++half) {
    UNROLL for (u32 n = 0; n < kWideTiles; ++n) {
      UNROLL for (u32 i = 0; i < 4; ++i) s.span[half].v[n][i] = 0;
    }
  }
  u32 of_span = 0;
  for (u32 segment = 0;; ++segment) {
    const u32 block = segment * kSegmentBlocks;
    const u32 blocks = memory.blocks - block;
    UNROLL for (u32 i = 0; i < 2; ++i) {
      s.words[i] = static_cast<u32>(scales.scale[i]) | static_cast<u32>(scales.bias[i]) << 16;
    }
    scales.load(scales_at, biases_at, min_of(block + kSegmentBlocks + quarter, last_block) >> per);
    const Global<const u8> from[2] = {row[0] + static_cast<i64>(block) * Codes::kBlockBytes,
                                      row[1] + static_cast<i64>(block) * Codes::kBlockBytes};
    const u32 most = last_block - block;
    wide_block<Codes, kTwo, 0>(t, memory, segment, from, min_of(2U, most), s);
    if (blocks == 1) break;
    wide_block<Codes, kTwo, 1>(t, memory, segment, from, min_of(3U, most), s);
    if (blocks == 2) break;
    wide_block<Codes, kTwo, 2>(t, memory, segment, from, min_of(4U, most), s);
    if (blocks == 3) break;
    wide_block<Codes, kTwo, 3>(t, memory, segment, from, min_of(5U, most), s);
    if (blocks == 4) break;
    if (++of_span == kSpanSegments) {
      wide_end_span<kTwo>(t, memory, segment < kSpanSegments, s.span);
      of_span = 0;
    }
  }
  wide_end_span<kTwo>(t, memory, memory.blocks <= static_cast<u32>(kSpanBlocks), s.span);
}
template <class Codes>
DEVICE_FUNCTION void wide_sums(const Thread& t, const GemmRows& w, const WideMemory& memory) {
  if (memory.two) {
    wide_sums_of<Codes, true>(t, w, memory);
  } else {
    wide_sums_of<Codes, false>(t, w, memory);
  }
}
/// The first of the group's outputs and columns that are a thread's: others are 8 outputs, 1 or 8 columns on.
struct WidePlace {
  i64 output;
  u32 column;
};
DEVICE_FUNCTION WidePlace wide_place_of(const Thread& t, const GemmRows& w) {
  WidePlace place;
  place.output = w.row_a + t.simd * 16 + t.lane / 4;
  place.column = t.lane % 4 * 2;
  return place;
}

/// Groups (outputs, pairs of tiles of rows).
template <class Codes>
DEVICE_FUNCTION void dense_wide(const Thread& t, const GemmArgs& args, WideMemory memory) {
  const i64 first = static_cast<i64>(t.group_y) * kWideColumns;
  memory.two = first + kGemmColumns < args.rows;
  const GemmRows w = rows_of(t, args.w);
  wide_sums<Codes>(t, w, memory);
  const WidePlace place = wide_place_of(t, w);
  NO_UNROLL for (u32 tile = 0; tile < 2 * kWideTiles; ++tile) {
    if (tile == kWideTiles && !memory.two) break;
    f32 v[4];
    wide_totals(memory, tile / kWideTiles, tile % kWideTiles, t.index, v);
    UNROLL for (u32 i = 0; i < 4; ++i) {
      const i64 output = place.output + (i / 2) * 8;
      const i64 row = first + tile * 8 + place.column + i % 2;
      if (output >= w.a.out || row >= args.rows) continue;
      args.y[row * w.a.out + output] = args.silu != 0 ? silu(v[i] / args.div) : v[i];
    }
  }
}

#define SLUICE_WIDE_MEMORY(from, in)                \
  LARGE_SHARED(stages, kWideLarge);                 \
  SHARED(u64, marks, 2 * kWideStages);              \
  const u32 blocks = static_cast<u32>(in) / kBlock; \
  const WideMemory memory = {                       \
      stages, {marks}, from + static_cast<i64>(t.group_y) * blocks * 2 * kWideWords, blocks, true}

#define SLUICE_WIDE(name, Codes)                                     \
  KERNEL_LARGE(wide_##name, GemmArgs, kGemmThreads, 1, kWideLarge) { \
    KERNEL_THREAD(t);                                                \
    SLUICE_WIDE_MEMORY(args.x.words, args.w.in);                     \
    dense_wide<Codes>(t, args, memory);                              \
  }
SLUICE_WIDE(q4, CodesQ4)
SLUICE_WIDE(q8, CodesQ8)
SLUICE_WIDE(q3, CodesQ3)
SLUICE_WIDE(q2, CodesQ2)
#undef SLUICE_WIDE

/// A tile's expert and pairs.
struct WideExpert {
  u32 number, first, end;
};
DEVICE_FUNCTION WideExpert wide_expert(const Thread& t, const ExpertsGemmArgs& args) {
  WideExpert of;
  of.number = args.tile_entry[t.group_y];
  of.first = args.tile_first[t.group_y];
  of.end = args.experts.begin[of.number + 1];
  return of;
}

/// Groups (64 outputs of gate and of up, tiles). Inputs of one span at most.
template <class Codes>
DEVICE_FUNCTION void experts_wide_gate_up(const Thread& t, const ExpertsGemmArgs& args, i32 format,
                                          WideMemory memory) {
  if (t.group_y >= args.tiles[0]) return;
  const WideExpert of = wide_expert(t, args);
  const ExpertsArgs& e = args.experts;
  const u64 entry = e.entries[of.number];
  if (format_of(entry) != format) return;
  memory.two = of.first + kGemmColumns < of.end;
  const GemmRows w = gate_up_rows(t, e, entry);
  wide_sums<Codes>(t, w, memory);
  barrier(t);
  // What the other half of the group has left is up's: each takes one half of the columns.
  const u32 half = t.simd / 4;
  if (half == 1 && !memory.two) return;
  const u32 thread = t.index % (kGemmThreads / 2);
  const i64 output = w.row_a + t.simd % 4 * 16 + t.lane / 4;
  const u32 base = e.begin[0];
  NO_UNROLL for (u32 n = 0; n < kWideTiles; ++n) {
    f32 gate[4];
    f32 up[4];
    wide_totals(memory, half, n, thread, gate);
    wide_totals(memory, half, n, thread + kGemmThreads / 2, up);
    UNROLL for (u32 i = 0; i < 4; ++i) {
      const i64 to = output + (i / 2) * 8;
      const u32 pair = of.first + half * kGemmColumns + n * 8 + t.lane % 4 * 2 + i % 2;
      if (to >= e.inter || pair >= of.end) continue;
      e.hidden_out[static_cast<i64>(pair - base) * e.inter + to] = silu(gate[i]) * up[i];
    }
  }
}

/// Groups (128 outputs, tiles). Inputs of one span at most. `rows` is where the columns' results go.
template <class Codes>
DEVICE_FUNCTION void experts_wide_down(const Thread& t, const ExpertsGemmArgs& args, i32 format,
                                       WideMemory memory, Shared<u32> rows) {
  if (t.group_y >= args.tiles[0]) return;
  const WideExpert of = wide_expert(t, args);
  const ExpertsArgs& e = args.experts;
  const u64 entry = e.entries[of.number];
  if (format_of(entry) != format) return;
  memory.two = of.first + kGemmColumns < of.end;
  const GemmRows w = rows_of(t, expert_matrix(entry, 2, e));
  // Asked for before the products: behind them every thread would wait for each.
  if (t.index < kWideColumns) {
    const u32 pair = min_of(of.first + t.index, of.end - 1);
    rows[t.index] = e.pair_row[pair] * static_cast<u32>(e.slots) + e.pair_slot[pair];
  }
  wide_sums<Codes>(t, w, memory);
  const WidePlace place = wide_place_of(t, w);
  NO_UNROLL for (u32 tile = 0; tile < 2 * kWideTiles; ++tile) {
    if (tile == kWideTiles && !memory.two) break;
    f32 v[4];
    wide_totals(memory, tile / kWideTiles, tile % kWideTiles, t.index, v);
    UNROLL for (u32 i = 0; i < 2; ++i) {
      const u32 column = tile * 8 + place.column + i;
      if (of.first + column >= of.end) continue;
      const i64 to = static_cast<i64>(rows[column]) * e.hidden;
      UNROLL for (u32 half = 0; half < 2; ++half) {
        const i64 output = place.output + half * 8;
        if (output < e.hidden) e.y[to + output] = v[2 * half + i];
      }
    }
  }
}

#define SLUICE_EXPERTS_WIDE(name, Codes, format)                                            \
  KERNEL_LARGE(experts_wide_gate_up_##name, ExpertsGemmArgs, kGemmThreads, 1, kWideLarge) { \
    KERNEL_THREAD(t);                                                                       \
    SLUICE_WIDE_MEMORY(args.x.words, args.experts.hidden);                                  \
    experts_wide_gate_up<Codes>(t, args, format, memory);                                   \
  }                                                                                         \
  KERNEL_LARGE(experts_wide_down_##name, ExpertsGemmArgs, kGemmThreads, 1, kWideLarge) {    \
    KERNEL_THREAD(t);                                                                       \
    SHARED(u32, rows, kWideColumns);                                                        \
    SLUICE_WIDE_MEMORY(args.x.words, args.experts.inter);                                   \
    experts_wide_down<Codes>(t, args, format, memory, rows);                                \
  }
SLUICE_EXPERTS_WIDE(q4, CodesQ4, kFormatQ4)
SLUICE_EXPERTS_WIDE(q8, CodesQ8, kFormatQ8)
SLUICE_EXPERTS_WIDE(q3, CodesQ3, kFormatQ3)
SLUICE_EXPERTS_WIDE(q2, CodesQ2, kFormatQ2)
#undef SLUICE_EXPERTS_WIDE
#undef SLUICE_WIDE_MEMORY

}  // namespace sluice::kernels

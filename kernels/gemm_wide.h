// gemm.h for devices that multiply wide (dialect/wide.h): the same tiles of 128 outputs by 64 columns, the
// same sums in the same order.
//
// Columns are rounded beforehand into tiles, so that a block of one comes to the group's memory by one copy;
// a pair of an expert is a column of its own. Weights and scales go straight to the lanes that multiply them.
// An output's span lies in the group's memory and is touched once a segment: two groups find room on a
// multiprocessor, and one scales while the other multiplies.
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

/// Which rows the columns of tile number `tile` are.
struct WideRows {
  Global<const u32> tile_entry, tile_first, tiles, begin;  // of experts' pairs; none: rows in order
  Global<const u32> pair_row;                              // none: pairs in order
  i64 rows;
  /// -1 for a place without a row.
  DEVICE_FUNCTION i64 row(u32 tile, u32 column) const {
    if (tile_entry == nullptr) {
      const i64 at = static_cast<i64>(tile) * kGemmColumns + column;
      return at < rows ? at : -1;
    }
    const u32 pair = tile_first[tile] + column;
    if (pair >= begin[tile_entry[tile] + 1]) return -1;
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
  if (args.from.tile_entry != nullptr && t.group_y >= args.from.tiles[0]) return;
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
    UNROLL
    for (u32 h = 0; h < 2; ++h) {
      u32 w[4] = {columns.pair[0][4 * h], columns.pair[0][4 * h + 1], columns.pair[0][4 * h + 2],
                  columns.pair[0][4 * h + 3]};
      swap_halves(t, 1, w[0], w[1]);
      swap_halves(t, 1, w[2], w[3]);
      swap_halves(t, 2, w[0], w[2]);
      swap_halves(t, 2, w[1], w[3]);
      u32x4 chunk;
      chunk.x = w[0];
      chunk.y = w[1];
      chunk.z = w[2];
      chunk.w = w[3];
      if (b < blocks) store4(to, b * kWideWords + wide_place(column, 2 * quarter + h), chunk);
    }
    if (b < blocks && quarter == 0) {
      to[b * kWideWords + kWideSums + side_place(column)] = bits_of_f32(sum);
      to[b * kWideWords + kWideDowns + side_place(column)] = bits_of_f32(scale.down);
    }
  }
}

constexpr u32 kWideStages = kSegmentBlocks;
constexpr u32 kWideStageWords = (kWideWords + 255) / 256 * 256;  // columns begin at multiples of 1 KiB
constexpr u32 kWideLarge = kWideStages * kWideStageWords;
constexpr u32 kWideResident = 2;  // groups a multiprocessor should hold
constexpr u32 kWideSpan = kWideTiles * 4 * kGemmThreads;

/// A thread's outputs, of rows 16 t.simd + t.lane / 4 and + 8 of the group's 128: of a segment or a span.
struct WideTotals {
  f32 v[kWideTiles][4];
};

/// A group's memory, and what comes through it.
struct WideMemory {
  Shared<u32> stages;
  Shared<f32> span;  // [kWideTiles][threads][4]
  StageRing<kWideStages> ring;
  Global<const u32> columns;  // of the tile
  u32 blocks;
};

/// Segment `segment`'s block `place`, which has a stage of its own.
DEVICE_FUNCTION void wide_fill(const Thread& t, const WideMemory& memory, u32 segment, u32 place) {
  const u32 block = segment * kSegmentBlocks + place;
  if (t.index == 0 && block < memory.blocks) {
    ring_fill(memory.ring, place, segment, memory.stages + place * kWideStageWords,
              memory.columns + static_cast<i64>(block) * kWideWords, kWideWords);
  }
}
DEVICE_FUNCTION void wide_begin(const Thread& t, const WideMemory& memory) {
  ring_begin(t, memory.ring, kGemmThreads / 32);
  UNROLL for (u32 i = 0; i + 1 < kWideStages; ++i) wide_fill(t, memory, 0, i);
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

/// One block of a segment; the codes of the next are read meanwhile, number `next` from the rows' `from` on.
template <class Codes, u32 kPlace>
DEVICE_FUNCTION void wide_block(const Thread& t, const WideMemory& memory, u32 segment, const u32* words,
                                Codes* codes, const Global<const u8>* from, u32 next, WideTotals& total) {
  const u32 quarter = t.lane % 4;
  WideA a;
  UNROLL for (u32 j = 0; j < 4; ++j) {
    a.step[j].r[0] = codes[0].pair(0, j, quarter);
    a.step[j].r[1] = codes[1].pair(0, j, quarter);
    a.step[j].r[2] = codes[0].pair(1, j, quarter);
    a.step[j].r[3] = codes[1].pair(1, j, quarter);
  }
  const Shared<u32> stage = memory.stages + kPlace * kWideStageWords;
  WideC c;
  ring_wait(t, memory.ring, kPlace, segment);
  wide_multiply(t, c, a, stage);
  UNROLL for (u32 i = 0; i < 2; ++i) codes[i].load(from[i], next, quarter);
  f32 scale[2];
  f32 bias[2];
  UNROLL for (u32 i = 0; i < 2; ++i) {
    const u32 word = simd_shuffle(t, words[i], (t.lane & 28U) + kPlace);
    const f32 s = f32_of_bits(word << 16);
    scale[i] = Codes::scale(s);
    bias[i] = Codes::bias(s, f32_of_bits(word & 0xffff0000U));
  }
  wide_wait(t, c, a);
  UNROLL for (u32 n = 0; n < kWideTiles; n += 2) {
    const u32x4 sum = load4(stage, kWideSums + n * 8 + quarter * 4);
    UNROLL for (u32 i = 0; i < 4; ++i) {
      if (kPlace == 0) total.v[n][i] = total.v[n + 1][i] = 0;
    }
    add_block(total.v[n], c.tile[n], scale[0], bias[0], scale[1], bias[1], f32_of_bits(sum.x),
              f32_of_bits(sum.y));
    add_block(total.v[n + 1], c.tile[n + 1], scale[0], bias[0], scale[1], bias[1], f32_of_bits(sum.z),
              f32_of_bits(sum.w));
  }
}

/// The thread's segment is added to its span in the group's memory; `stage` is one of the segment's.
DEVICE_FUNCTION void wide_add_segment(const Thread& t, const WideMemory& memory, Shared<u32> stage,
                                      bool begins, const WideTotals& total) {
  UNROLL for (u32 n = 0; n < kWideTiles; n += 2) {
    const u32x4 down = load4(stage, kWideDowns + n * 8 + t.lane % 4 * 4);
    UNROLL for (u32 m = 0; m < 2; ++m) {
      const i64 at = ((n + m) * kGemmThreads + t.index) * 4;
      f32x4 span;
      span.x = span.y = span.z = span.w = 0;
      if (!begins) span = load4f(memory.span, at);
      const f32 down0 = f32_of_bits(m == 0 ? down.x : down.z);
      const f32 down1 = f32_of_bits(m == 0 ? down.y : down.w);
      span.x += total.v[n + m][0] * down0;
      span.y += total.v[n + m][1] * down1;
      span.z += total.v[n + m][2] * down0;
      span.w += total.v[n + m][3] * down1;
      store4f(memory.span, at, span);
    }
  }
}

/// The sum of one span, segments first .. last - 1; both matrices of w have the same inputs. It is left in
/// memory.span.
template <class Codes>
DEVICE_FUNCTION void wide_span(const Thread& t, const GemmRows& w, const WideMemory& memory, u32 first,
                               u32 last) {
  const u32 quarter = t.lane % 4;
  const u32 local = t.simd * 16 + t.lane / 4;
  const u32 per = w.a.per;
  const u32 last_block = memory.blocks - 1;
  Global<const u8> row[2] = {w.data(local), w.data(local + 8)};
  Global<const u16> scales_at[2];
  Global<const u16> biases_at[2];
  UNROLL for (u32 i = 0; i < 2; ++i) {
    const i64 side = w.scale_row(local + 8 * i) * w.a.groups;
    scales_at[i] = (local < w.split ? w.a.scales : w.b.scales) + side;
    biases_at[i] = (local < w.split ? w.a.biases : w.b.biases) + side;
  }
  Codes codes[2];
  UNROLL for (u32 i = 0; i < 2; ++i) codes[i].load(row[i], first * kSegmentBlocks, quarter);
  WideScales scales;
  scales.load(scales_at, biases_at, min_of(first * kSegmentBlocks + quarter, last_block) >> per);
  WideTotals total;
  for (u32 segment = first; segment < last; ++segment) {
    const u32 block = segment * kSegmentBlocks;
    const u32 blocks = min_of(kSegmentBlocks, memory.blocks - block);
    u32 words[2];
    UNROLL for (u32 i = 0; i < 2; ++i) {
      words[i] = static_cast<u32>(scales.scale[i]) | static_cast<u32>(scales.bias[i]) << 16;
    }
    scales.load(scales_at, biases_at, min_of(block + kSegmentBlocks + quarter, last_block) >> per);
    const Global<const u8> from[2] = {row[0] + static_cast<i64>(block) * Codes::kBlockBytes,
                                      row[1] + static_cast<i64>(block) * Codes::kBlockBytes};
    const u32 most = last_block - block;
    wide_block<Codes, 0>(t, memory, segment, words, codes, from, min_of(1U, most), total);
    ring_release(t, memory.ring, 0);
    wide_fill(t, memory, segment, 3);
    if (blocks > 1) {
      wide_block<Codes, 1>(t, memory, segment, words, codes, from, min_of(2U, most), total);
      ring_release(t, memory.ring, 1);
      wide_fill(t, memory, segment + 1, 0);
    }
    if (blocks > 2) {
      wide_block<Codes, 2>(t, memory, segment, words, codes, from, min_of(3U, most), total);
      ring_release(t, memory.ring, 2);
      wide_fill(t, memory, segment + 1, 1);
    }
    if (blocks > 3) wide_block<Codes, 3>(t, memory, segment, words, codes, from, min_of(4U, most), total);
    wide_add_segment(t, memory, memory.stages + (blocks - 1) * kWideStageWords, segment == first, total);
    if (blocks > 3) {
      ring_release(t, memory.ring, 3);
      wide_fill(t, memory, segment + 1, 2);
    }
  }
}
DEVICE_FUNCTION void wide_totals(const WideMemory& memory, u32 thread, WideTotals& total) {
  UNROLL for (u32 n = 0; n < kWideTiles; ++n) {
    const f32x4 v = load4f(memory.span, (n * kGemmThreads + thread) * 4);
    total.v[n][0] = v.x;
    total.v[n][1] = v.y;
    total.v[n][2] = v.z;
    total.v[n][3] = v.w;
  }
}

/// Groups (outputs, tiles of rows).
template <class Codes>
DEVICE_FUNCTION void dense_wide(const Thread& t, const GemmArgs& args, const WideMemory& memory) {
  const i64 first = static_cast<i64>(t.group_y) * kGemmColumns;
  const GemmRows w = rows_of(t, args.w);
  wide_begin(t, memory);
  const u32 segments = (memory.blocks + kSegmentBlocks - 1) / kSegmentBlocks;
  for (u32 segment = 0; segment < segments; segment += kSpanSegments) {
    const u32 end = min_of(segment + kSpanSegments, segments);
    wide_span<Codes>(t, w, memory, segment, end);
    WideTotals total;
    wide_totals(memory, t.index, total);
    const bool silus = end == segments && args.silu != 0;
    UNROLL for (u32 n = 0; n < kWideTiles; ++n) {
      UNROLL for (u32 i = 0; i < 4; ++i) {
        const i64 output = w.row_a + t.simd * 16 + t.lane / 4 + (i / 2) * 8;
        const i64 row = first + n * 8 + t.lane % 4 * 2 + i % 2;
        if (output >= w.a.out || row >= args.rows) continue;
        // Spans are added where the result goes: a thread reads what it wrote itself.
        const i64 at = row * w.a.out + output;
        f32 value = total.v[n][i];
        if (segment > 0) value = args.y[at] + value;
        if (silus) value = silu(value / args.div);
        args.y[at] = value;
      }
    }
  }
}

#define SLUICE_WIDE_MEMORY(from, in)                \
  LARGE_SHARED(stages, kWideLarge);                 \
  SHARED(f32, span, kWideSpan);                     \
  SHARED(u64, marks, 2 * kWideStages);              \
  const u32 blocks = static_cast<u32>(in) / kBlock; \
  const WideMemory memory = {                       \
      stages, span, {marks}, from + static_cast<i64>(t.group_y) * blocks * kWideWords, blocks}

#define SLUICE_WIDE(name, Codes)                                                 \
  KERNEL_LARGE(wide_##name, GemmArgs, kGemmThreads, kWideResident, kWideLarge) { \
    KERNEL_THREAD(t);                                                            \
    SLUICE_WIDE_MEMORY(args.x.words, args.w.in);                                 \
    dense_wide<Codes>(t, args, memory);                                          \
  }
SLUICE_WIDE(q4, CodesQ4)
SLUICE_WIDE(q8, CodesQ8)
SLUICE_WIDE(q3, CodesQ3)
SLUICE_WIDE(q2, CodesQ2)
#undef SLUICE_WIDE

/// Groups (64 outputs of gate and of up, tiles). Inputs of one span at most.
template <class Codes>
DEVICE_FUNCTION void experts_wide_gate_up(const Thread& t, const ExpertsGemmArgs& args, i32 format,
                                          const WideMemory& memory) {
  if (t.group_y >= args.tiles[0]) return;
  const ExpertsArgs& e = args.experts;
  const u32 number = args.tile_entry[t.group_y];
  const u64 entry = e.entries[number];
  if (format_of(entry) != format) return;
  const u32 first = args.tile_first[t.group_y];
  const u32 end = e.begin[number + 1];
  const GemmRows w = gate_up_rows(t, e, entry);
  wide_begin(t, memory);
  wide_span<Codes>(t, w, memory, 0, static_cast<u32>(segments_of(e.hidden)));
  barrier(t);
  // What the other half has left is up's.
  if (t.simd >= 4) return;
  WideTotals total;
  wide_totals(memory, t.index, total);
  WideTotals up;
  wide_totals(memory, t.index + kGemmThreads / 2, up);
  UNROLL for (u32 n = 0; n < kWideTiles; ++n) {
    UNROLL for (u32 i = 0; i < 4; ++i) {
      const i64 to = w.row_a + t.simd * 16 + t.lane / 4 + (i / 2) * 8;
      const u32 pair = first + n * 8 + t.lane % 4 * 2 + i % 2;
      if (to >= e.inter || pair >= end) continue;
      e.hidden_out[static_cast<i64>(pair - e.begin[0]) * e.inter + to] = silu(total.v[n][i]) * up.v[n][i];
    }
  }
}

/// Groups (128 outputs, tiles). Inputs of one span at most.
template <class Codes>
DEVICE_FUNCTION void experts_wide_down(const Thread& t, const ExpertsGemmArgs& args, i32 format,
                                       const WideMemory& memory) {
  if (t.group_y >= args.tiles[0]) return;
  const ExpertsArgs& e = args.experts;
  const u32 number = args.tile_entry[t.group_y];
  const u64 entry = e.entries[number];
  if (format_of(entry) != format) return;
  const u32 first = args.tile_first[t.group_y];
  const u32 end = e.begin[number + 1];
  const GemmRows w = rows_of(t, expert_matrix(entry, 2, e));
  wide_begin(t, memory);
  wide_span<Codes>(t, w, memory, 0, static_cast<u32>(segments_of(e.inter)));
  WideTotals total;
  wide_totals(memory, t.index, total);
  UNROLL for (u32 n = 0; n < kWideTiles; ++n) {
    UNROLL for (u32 i = 0; i < 2; ++i) {
      const u32 pair = first + n * 8 + t.lane % 4 * 2 + i;
      if (pair >= end) continue;
      const i64 to = static_cast<i64>(e.pair_row[pair]) * e.slots + e.pair_slot[pair];
      UNROLL for (u32 half = 0; half < 2; ++half) {
        const i64 output = w.row_a + t.simd * 16 + t.lane / 4 + half * 8;
        if (output < e.hidden) e.y[to * e.hidden + output] = total.v[n][2 * half + i];
      }
    }
  }
}

#define SLUICE_EXPERTS_WIDE(name, Codes, format)                                                        \
  KERNEL_LARGE(experts_wide_gate_up_##name, ExpertsGemmArgs, kGemmThreads, kWideResident, kWideLarge) { \
    KERNEL_THREAD(t);                                                                                   \
    SLUICE_WIDE_MEMORY(args.x.words, args.experts.hidden);                                              \
    experts_wide_gate_up<Codes>(t, args, format, memory);                                               \
  }                                                                                                     \
  KERNEL_LARGE(experts_wide_down_##name, ExpertsGemmArgs, kGemmThreads, kWideResident, kWideLarge) {    \
    KERNEL_THREAD(t);                                                                                   \
    SLUICE_WIDE_MEMORY(args.x.words, args.experts.inter);                                               \
    experts_wide_down<Codes>(t, args, format, memory);                                                  \
  }
SLUICE_EXPERTS_WIDE(q4, CodesQ4, kFormatQ4)
SLUICE_EXPERTS_WIDE(q8, CodesQ8, kFormatQ8)
SLUICE_EXPERTS_WIDE(q3, CodesQ3, kFormatQ3)
SLUICE_EXPERTS_WIDE(q2, CodesQ2, kFormatQ2)
#undef SLUICE_EXPERTS_WIDE
#undef SLUICE_WIDE_MEMORY

}  // namespace sluice::kernels

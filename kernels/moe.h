// The routed experts of a decode step's few rows and the shared expert with them (model.md 3.9).
//
// As experts.h, with the rows of an entry rounded once a group, and the shared expert as one entry more. The
// bits are the same.
#pragma once

#include "experts.h"
#include "quads.h"
#include "stage.h"

#define SLUICE_MOE_KERNELS(X) \
  X(moe_gate_up_q4)           \
  X(moe_gate_up_q8)           \
  X(moe_gate_up_q3)           \
  X(moe_gate_up_q2)           \
  X(moe_down_q4)              \
  X(moe_down_q8)              \
  X(moe_down_q3)              \
  X(moe_down_q2)              \
  X(moe_combine)

namespace sluice::kernels {

constexpr u32 kMoeThreads = 256;
constexpr u32 kMoeSimds = kMoeThreads / 32;
constexpr u32 kMoeUnits = 20;
constexpr u32 kMoeTasks = 40;
constexpr u32 kMoeTiles = 8;  // of a group at most, of both matrices together

struct MoeArgs {
  ExpertsArgs experts;
  u32 entries;  // those of the table; entry number `entries` is the shared expert, if it is there
  u32 rows;     // of the step
  Weights shared_gate, shared_up, shared_down;
  Global<f32> shared_y;  // [rows][hidden]
};

/// One entry's work: its matrices and its columns.
struct MoeEntry {
  Weights a, b;
  StagedRows rows;
  u32 first, end;  // pairs; of the shared expert: rows
  bool shared;
  bool none;
};
DEVICE_FUNCTION MoeEntry moe_entry(const MoeArgs& args, u32 number, i32 format, bool down) {
  const ExpertsArgs& e = args.experts;
  MoeEntry entry;
  entry.shared = number == args.entries;
  entry.none = false;
  const u32 pairs = e.begin[args.entries] - e.begin[0];
  if (entry.shared) {
    entry.first = 0;
    entry.end = args.rows;
    if (down) {
      entry.a = args.shared_down;
      entry.b = args.shared_down;
      entry.rows = StagedRows{e.hidden_out, nullptr, static_cast<i64>(pairs)};
    } else {
      entry.a = args.shared_gate;
      entry.b = args.shared_up;
      entry.rows = StagedRows{e.x, nullptr, 0};
    }
    return entry;
  }
  const u64 bits = e.entries[number];
  entry.first = e.begin[number];
  entry.end = e.begin[number + 1];
  entry.none = entry.first == entry.end || format_of(bits) != format;
  if (entry.none) return entry;
  if (down) {
    entry.a = expert_matrix(bits, 2, e);
    entry.b = entry.a;
    entry.rows = StagedRows{e.hidden_out, nullptr, static_cast<i64>(entry.first - e.begin[0])};
  } else {
    entry.a = expert_matrix(bits, 0, e);
    entry.b = expert_matrix(bits, 1, e);
    entry.rows = StagedRows{e.x, e.pair_row + entry.first, 0};
  }
  return entry;
}

/// Totals of a group's tiles of one or two matrices, in `total`: element e of tile p is number p * kTile + e.
template <class Codes>
DEVICE_FUNCTION void moe_totals(const Thread& t, const MoeEntry& entry, u32 matrices, u32 tile0, u32 tiles,
                                Shared<u32> words, Shared<f32> sides, Shared<f32> partial, SpanSum* total) {
  const u32 columns_now = entry.end - entry.first;
  const u32 segments = static_cast<u32>(segments_of(entry.a.in));
  const u32 wide = tiles * matrices;
  const u32 round = min_of(kMoeUnits / columns_now, kMoeTasks / wide);
  UNROLL for (u32 k = 0; k < kMoeTiles * kTile / kMoeThreads; ++k) total[k].clear();
  stage_zeros(t, words, sides, kMoeUnits);
  NO_UNROLL for (u32 first = 0; first < segments; first += round) {
    const u32 now = min_of(round, segments - first);
    const u32 tasks = now * wide;
    const u32 each = (tasks + kMoeSimds - 1) / kMoeSimds;
    const u32 end = min_of(tasks, (t.simd + 1) * each);
    u32 task = t.simd * each;
    u32 load_segment = task / wide;
    u32 load_place = task % wide;
    u32 segment = load_segment;
    TileSegment<Codes> next;
    if (task < end) {
      next.load(t, load_place < tiles ? entry.a : entry.b,
                tile0 + (load_place < tiles ? load_place : load_place - tiles), first + load_segment);
    }
    stage_rows(t, kMoeThreads, entry.rows, entry.a.in, columns_now, first, now, words, sides);
    barrier(t);
    SegmentColumns<1> columns;
    bool fresh = true;  // the segment is not in columns yet
    NO_UNROLL for (; task < end; ++task) {
      const TileSegment<Codes> current = next;
      const u32 now_segment = segment;
      ++load_place;
      if (load_place == wide) {
        load_place = 0;
        ++load_segment;
      }
      if (task + 1 < end) {
        next.load(t, load_place < tiles ? entry.a : entry.b,
                  tile0 + (load_place < tiles ? load_place : load_place - tiles), first + load_segment);
      }
      if (fresh) staged_columns(t, words, sides, now_segment, columns_now, kMoeUnits, columns);
      fresh = load_segment != now_segment;
      segment = load_segment;
      put_partial(t, partial + static_cast<i64>(task) * kTile,
                  current.multiply(t, blocks_of(entry.a.in, first + now_segment), columns));
    }
    barrier(t);
    UNROLL for (u32 k = 0; k < kMoeTiles * kTile / kMoeThreads; ++k) {
      const u32 e = t.index + k * kMoeThreads;
      if (e >= wide * kTile) continue;
      u32 place = first % kSpanSegments;
      for (u32 s = 0; s < now; ++s) {
        total[k].add(place, partial[(s * wide + e / kTile) * kTile + e % kTile]);
        place = place + 1 == kSpanSegments ? 0 : place + 1;
      }
    }
    barrier(t);
  }
}

/// Groups (tiles of the intermediate width, entries and the shared expert). At most 8 pairs an entry.
template <class Codes>
DEVICE_FUNCTION void moe_gate_up(const Thread& t, const MoeArgs& args, i32 format, Shared<u32> words,
                                 Shared<f32> sides, Shared<f32> partial) {
  const MoeEntry entry = moe_entry(args, t.group_y, format, false);
  if (entry.none) return;
  const u32 tiles = static_cast<u32>(args.experts.tiles);
  const u32 tile0 = t.group_x * tiles;
  SpanSum total[kMoeTiles * kTile / kMoeThreads];
  moe_totals<Codes>(t, entry, 2, tile0, tiles, words, sides, partial, total);
  // The up half goes through memory: gate's elements come first.
  const u32 half = tiles * kTile;
  UNROLL for (u32 k = 0; k < kMoeTiles * kTile / kMoeThreads; ++k) {
    const u32 e = t.index + k * kMoeThreads;
    if (e >= half && e < 2 * half) partial[e - half] = total[k].sum();
  }
  barrier(t);
  const u32 pairs = args.experts.begin[args.entries] - args.experts.begin[0];
  const i64 inter = entry.a.out;
  UNROLL for (u32 k = 0; k < kMoeTiles * kTile / kMoeThreads; ++k) {
    const u32 e = t.index + k * kMoeThreads;
    if (e >= half) continue;
    const i64 output = static_cast<i64>(tile0 + e / kTile) * kTileRows + e % kTileRows;
    const u32 column = e % kTile / kTileRows;
    if (output >= inter || column >= entry.end - entry.first) continue;
    const i64 to = entry.shared ? static_cast<i64>(pairs + column)
                                : static_cast<i64>(entry.first + column - args.experts.begin[0]);
    args.experts.hidden_out[to * inter + output] = silu(total[k].sum()) * partial[e];
  }
}

/// Groups (tiles of the hidden width, entries and the shared expert).
template <class Codes>
DEVICE_FUNCTION void moe_down(const Thread& t, const MoeArgs& args, i32 format, Shared<u32> words,
                              Shared<f32> sides, Shared<f32> partial) {
  const MoeEntry entry = moe_entry(args, t.group_y, format, true);
  if (entry.none) return;
  const ExpertsArgs& x = args.experts;
  const u32 tiles = static_cast<u32>(x.tiles);
  const u32 tile0 = t.group_x * tiles;
  SpanSum total[kMoeTiles * kTile / kMoeThreads];
  moe_totals<Codes>(t, entry, 1, tile0, tiles, words, sides, partial, total);
  UNROLL for (u32 k = 0; k < kMoeTiles * kTile / kMoeThreads; ++k) {
    const u32 e = t.index + k * kMoeThreads;
    if (e >= tiles * kTile) continue;
    const i64 output = static_cast<i64>(tile0 + e / kTile) * kTileRows + e % kTileRows;
    const u32 column = e % kTile / kTileRows;
    if (output >= x.hidden || column >= entry.end - entry.first) continue;
    if (entry.shared) {
      args.shared_y[static_cast<i64>(column) * x.hidden + output] = total[k].sum();
    } else {
      const u32 pair = entry.first + column;
      const i64 to = static_cast<i64>(x.pair_row[pair]) * x.slots + x.pair_slot[pair];
      x.y[to * x.hidden + output] = total[k].sum();
    }
  }
}

#define SLUICE_MOE(name, Codes, format)                          \
  KERNEL_RESIDENT(moe_gate_up_##name, MoeArgs, kMoeThreads, 2) { \
    KERNEL_THREAD(t);                                            \
    SHARED(u32, words, (kMoeUnits + 1) * kUnitWords);            \
    SHARED(f32, sides, (kMoeUnits + 1) * kUnitSides);            \
    SHARED(f32, partial, kMoeTasks* kTile);                      \
    moe_gate_up<Codes>(t, args, format, words, sides, partial);  \
  }                                                              \
  KERNEL_RESIDENT(moe_down_##name, MoeArgs, kMoeThreads, 2) {    \
    KERNEL_THREAD(t);                                            \
    SHARED(u32, words, (kMoeUnits + 1) * kUnitWords);            \
    SHARED(f32, sides, (kMoeUnits + 1) * kUnitSides);            \
    SHARED(f32, partial, kMoeTasks* kTile);                      \
    moe_down<Codes>(t, args, format, words, sides, partial);     \
  }
SLUICE_MOE(q4, CodesQ4, kFormatQ4)
SLUICE_MOE(q8, CodesQ8, kFormatQ8)
SLUICE_MOE(q3, CodesQ3, kFormatQ3)
SLUICE_MOE(q2, CodesQ2, kFormatQ2)
#undef SLUICE_MOE

struct MoeCombineArgs {
  Global<const f32> y;            // [rows][slots][width]
  Global<const f32> weight;       // [rows][slots]
  Global<const f32> shared;       // [rows][width]
  Global<const f32> shared_gate;  // [rows]
  Global<f32> out;                // [rows][width]
  i64 slots, width;
};
constexpr u32 kMoeCombineThreads = 128;
constexpr u32 kMoeCombineSlots = 12;
/// Groups (parts of a row, rows): combine_slots, then gated_add_rows.
KERNEL(moe_combine, MoeCombineArgs, kMoeCombineThreads) {
  KERNEL_THREAD(t);
  const i64 row = t.group_y;
  const i64 i = static_cast<i64>(t.group_x) * kMoeCombineThreads + t.index;
  if (i >= args.width) return;
  f32 sum = 0;
  for (i64 first = 0; first < args.slots; first += kMoeCombineSlots) {
    f32 weight[kMoeCombineSlots];
    f32 y[kMoeCombineSlots];
    UNROLL for (u32 k = 0; k < kMoeCombineSlots; ++k) {
      weight[k] = first + k < args.slots ? static_cast<f32>(args.weight[row * args.slots + first + k]) : 0.0F;
    }
    UNROLL for (u32 k = 0; k < kMoeCombineSlots; ++k) {
      y[k] = 0;
      if (weight[k] != 0) y[k] = args.y[(row * args.slots + first + k) * args.width + i];
    }
    UNROLL for (u32 k = 0; k < kMoeCombineSlots; ++k) {
      if (weight[k] != 0) sum = fma_f32(y[k], weight[k], sum);
    }
  }
  args.out[row * args.width + i] =
      fma_f32(sigmoid(args.shared_gate[row]), args.shared[row * args.width + i], sum);
}

}  // namespace sluice::kernels

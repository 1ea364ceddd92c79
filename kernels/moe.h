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

constexpr u32 kMoeThreads = 320;  // a SIMD group for each segment of the released model's width
constexpr u32 kMoeSimds = kMoeThreads / 32;
constexpr u32 kMoeUnits = 40;
constexpr u32 kMoePartials = 2560;
constexpr u32 kMoeTiles = 10;                                 // of a group at most, of both matrices together
constexpr u32 kMoeResults = kMoeTiles * kTile / kMoeThreads;  // of a thread
static_assert(kMoeTiles * kTile % kMoeThreads == 0 && kMoeTiles * kTile <= kMoePartials,
              "threads share the results of a group evenly");

/// Of so many rows at most the next kernel's part of the experts stays in the cache beside this one's.
constexpr u32 kMoeFetchedRows = 2;

struct MoeArgs {
  ExpertsArgs experts;
  u32 entries;  // those of the table; entry number `entries` is the shared expert, if it is there
  u32 rows;     // of the step
  i32 shared_format;
  Weights shared_gate, shared_up, shared_down;
  Global<f32> shared_y;  // [rows][hidden]
  RoundArgs round;       // the rows, if they are rounded beforehand
};

/// One entry's work: its matrices, which differ in nothing but where they lie, and its columns.
struct MoeEntry {
  TileMatrix a, b;
  StagedRows rows;
  u64 bits;        // of the record
  u32 first, end;  // pairs; of the shared expert: rows
  u32 base;        // the first of all pairs
  u32 pairs;       // of all entries
  bool none;
};
/// Matrix `which` of a record, as expert_matrix.
DEVICE_FUNCTION TileMatrix record_matrix(const ExpertsArgs& args, u64 entry, u32 which, u32 bits) {
  const u32 hidden = static_cast<u32>(args.hidden);
  const u32 inter = static_cast<u32>(args.inter);
  const u32 bytes = hidden * inter / 8 * bits;
  const u32 scale_bytes = hidden * args.inter_groups * 2;
  const Global<const u8> record = global_of_bits<const u8>(entry & ((static_cast<u64>(1) << 60) - 1));
  TileMatrix m;
  m.data = record + which * bytes;
  m.scales = retype<const u16>(record + (3 * bytes + 2 * which * scale_bytes));
  m.biases = retype<const u16>(record + (3 * bytes + (2 * which + 1) * scale_bytes));
  m.in = which == 2 ? inter : hidden;
  m.row_bytes = m.in / 8 * bits;
  m.groups = which == 2 ? args.inter_groups : args.hidden_groups;
  m.per = args.per;
  return m;
}
DEVICE_FUNCTION MoeEntry moe_entry(const MoeArgs& args, u32 number, i32 format, bool down) {
  const ExpertsArgs& e = args.experts;
  MoeEntry entry;
  entry.bits = 0;
  entry.base = e.begin[0];
  entry.pairs = e.begin[args.entries] - entry.base;
  entry.none = false;
  if (number == args.entries) {  // the shared expert
    entry.first = 0;
    entry.end = args.rows;
    entry.a = tile_matrix(down ? args.shared_down : args.shared_gate);
    entry.b = down ? entry.a : tile_matrix(args.shared_up);
    entry.rows = StagedRows{e.x, nullptr, 0};
    if (down) entry.rows = StagedRows{e.hidden_out, nullptr, entry.pairs};
    return entry;
  }
  entry.bits = e.entries[number];
  entry.first = e.begin[number];
  entry.end = e.begin[number + 1];
  entry.none = entry.first == entry.end || format_of(entry.bits) != format;
  const u32 code = static_cast<u32>(bits_of_format(format));
  entry.a = record_matrix(e, entry.bits, down ? 2 : 0, code);
  entry.b = down ? entry.a : record_matrix(e, entry.bits, 1, code);
  entry.rows = StagedRows{e.x, args.rows == 1 ? Global<const u32>() : e.pair_row + entry.first, 0};
  if (down) entry.rows = StagedRows{e.hidden_out, nullptr, entry.first - entry.base};
  return entry;
}

/// Totals of a group's tiles of one or two matrices: element t.index + k * kMoeThreads of [matrix][tile][row
/// of x][row of the tile] in total[k].
/// kEarly: the rows are what the kernel before makes, and nothing else is.
template <class Codes, u32 kSides, bool kEarly>
DEVICE_FUNCTION void moe_totals(const Thread& t, const MoeEntry& entry, u32 matrices, u32 tile0, u32 tiles,
                                Shared<f32> words, Shared<f32> sides, Shared<f32> partial, SpanSum* total) {
  const u32 columns_now = entry.end - entry.first;
  const u32 segments = (entry.a.in + kSegment - 1) / kSegment;
  const u32 wide = tiles * matrices;
  const u32 width = columns_now * kTileRows;
  const u32 round = min_of(kMoeUnits / columns_now, kMoePartials / (wide * width));
  UNROLL for (u32 k = 0; k < kMoeResults; ++k) total[k].clear();
  const GroupUnits units = staged_units(t, words, sides, columns_now);
  NO_UNROLL for (u32 first = 0; first < segments; first += round) {
    const u32 now = min_of(round, segments - first);
    const u32 tasks = now * wide;
    const u32 each = (tasks + kMoeSimds - 1) / kMoeSimds;
    const u32 begin = t.simd * each;
    const u32 end = min_of(tasks, begin + each);
    // As in project.h, but what the SIMD group rounds first is asked for before the codes, if it is there.
    UnitValues values;
    if (!kEarly) values = read_unit(t, entry.rows, entry.a.in, columns_now, first, t.simd, now * columns_now);
    NO_UNROLL for (u32 task = begin;; task += 2) {
      TileSegment<Codes, kSides> codes[2];
      u32 segment[2];
      UNROLL for (u32 i = 0; i < 2; ++i) {
        const u32 now_task = min_of(task + i, tasks - 1);
        segment[i] = now_task / wide;
        const u32 place = now_task - segment[i] * wide;
        const bool second = place >= tiles;
        TileMatrix w = entry.a;
        w.data = second ? entry.b.data : w.data;
        w.scales = second ? entry.b.scales : w.scales;
        w.biases = second ? entry.b.biases : w.biases;
        codes[i].load(t, w, tile0 + (second ? place - tiles : place), first + segment[i]);
      }
      if (task == begin) {
        if (kEarly) {
          if (first == 0) wait_for_kernel_before();
          values = read_unit(t, entry.rows, entry.a.in, columns_now, first, t.simd, now * columns_now);
        }
        stage_rows(t, kMoeSimds, entry.rows, entry.a.in, columns_now, first, now, values, Codes::kUnit, words,
                   sides);
        barrier(t);
      }
      UNROLL for (u32 i = 0; i < 2; ++i) {
        if (task + i < end)
          put_rows(t, partial + (task + i) * width, columns_now, codes[i].multiply(t, units, segment[i]));
      }
      if (task + 2 >= end) break;
    }
    barrier(t);
    UNROLL for (u32 k = 0; k < kMoeResults; ++k) {
      const u32 e = t.index + k * kMoeThreads;
      if (e >= wide * width) continue;
      add_partials(partial, wide * width, e, first, now, total[k]);
    }
    barrier(t);
  }
}

/// Groups (tiles of the intermediate width, entries and the shared expert). At most 8 pairs an entry.
template <class Codes>
DEVICE_FUNCTION void moe_gate_up(const Thread& t, const MoeArgs& args, i32 format, Shared<f32> words,
                                 Shared<f32> sides, Shared<f32> partial) {
  const MoeEntry entry = moe_entry(args, t.group_y, format, false);
  if (entry.none) return;
  const u32 tiles = static_cast<u32>(args.experts.tiles);
  const u32 tile0 = t.group_x * tiles;
  if (args.rows <= kMoeFetchedRows) {
    // What the next kernel reads of this expert, each group a part.
    const u32 down = static_cast<u32>(args.experts.hidden) / kTileRows;
    const u32 part = (down + t.groups_x - 1) / t.groups_x;
    const TileMatrix w = t.group_y == args.entries ? tile_matrix(args.shared_down)
                                                   : record_matrix(args.experts, entry.bits, 2,
                                                                   static_cast<u32>(bits_of_format(format)));
    if (t.group_x * part < down) {
      fetch_tiles(w, t.group_x * part, min_of(part, down - t.group_x * part), t.index, kMoeThreads);
    }
  }
  SpanSum total[kMoeResults];
  moe_totals<Codes, 4, false>(t, entry, 2, tile0, tiles, words, sides, partial, total);
  // The up half goes through memory: gate's elements come first.
  const u32 columns = entry.end - entry.first;
  const u32 half = tiles * columns * kTileRows;
  UNROLL for (u32 k = 0; k < kMoeResults; ++k) {
    const u32 e = t.index + k * kMoeThreads;
    if (e >= half && e < 2 * half) partial[e - half] = total[k].sum();
  }
  barrier(t);
  const u32 base = t.group_y == args.entries ? entry.pairs : entry.first - entry.base;
  const u32 inter = static_cast<u32>(args.experts.inter);
  UNROLL for (u32 k = 0; k < kMoeResults; ++k) {
    const u32 e = t.index + k * kMoeThreads;
    if (e >= half) continue;
    const u32 tile = e / (columns * kTileRows);
    const u32 output = (tile0 + tile) * kTileRows + e % kTileRows;
    const u32 column = e / kTileRows - tile * columns;
    if (output >= inter) continue;
    args.experts.hidden_out[static_cast<i64>(base + column) * inter + output] =
        silu(total[k].sum()) * partial[e];
  }
}

/// Groups (tiles of the hidden width, entries and the shared expert). Which experts there are, and their
/// weights, lies further back than the kernel before.
template <class Codes>
DEVICE_FUNCTION void moe_down(const Thread& t, const MoeArgs& args, i32 format, Shared<f32> words,
                              Shared<f32> sides, Shared<f32> partial) {
  const MoeEntry entry = moe_entry(args, t.group_y, format, true);
  if (entry.none) return wait_for_kernel_before();
  const ExpertsArgs& x = args.experts;
  const u32 tiles = static_cast<u32>(x.tiles);
  const u32 tile0 = t.group_x * tiles;
  SpanSum total[kMoeResults];
  moe_totals<Codes, 2, true>(t, entry, 1, tile0, tiles, words, sides, partial, total);
  const u32 columns = entry.end - entry.first;
  UNROLL for (u32 k = 0; k < kMoeResults; ++k) {
    const u32 e = t.index + k * kMoeThreads;
    if (e >= tiles * columns * kTileRows) continue;
    const u32 tile = e / (columns * kTileRows);
    const u32 output = (tile0 + tile) * kTileRows + e % kTileRows;
    const u32 column = e / kTileRows - tile * columns;
    if (output >= x.hidden) continue;
    if (t.group_y == args.entries) {
      args.shared_y[static_cast<i64>(column) * x.hidden + output] = total[k].sum();
    } else {
      // The pairs of one row are in the order of its slots.
      const u32 pair = entry.first + column;
      i64 to = pair;
      if (args.rows > 1) to = static_cast<i64>(x.pair_row[pair]) * x.slots + x.pair_slot[pair];
      x.y[to * x.hidden + output] = total[k].sum();
    }
  }
}

/// Whether a group of another precision's kernel has the shared expert of 4 bits.
DEVICE_FUNCTION bool is_other_shared(const Thread& t, const MoeArgs& args) {
  return t.group_y == args.entries && args.shared_format == kFormatQ4;
}

#define SLUICE_MOE_MEMORY                    \
  SHARED(f32, words, kMoeUnits* kUnitWords); \
  SHARED(f32, sides, kMoeUnits* kUnitSides); \
  SHARED(f32, partial, kMoePartials)
KERNEL_RESIDENT(moe_gate_up_q4, MoeArgs, kMoeThreads, 2) {
  KERNEL_THREAD(t);
  SLUICE_MOE_MEMORY;
  moe_gate_up<CodesQ4>(t, args, kFormatQ4, words, sides, partial);
}
KERNEL_RESIDENT(moe_down_q4, MoeArgs, kMoeThreads, 2) {
  KERNEL_THREAD_EARLY(t);
  SLUICE_MOE_MEMORY;
  moe_down<CodesQ4>(t, args, kFormatQ4, words, sides, partial);
}
#define SLUICE_MOE(name, Codes, format)                                \
  KERNEL_RESIDENT(moe_gate_up_##name, MoeArgs, kMoeThreads, 2) {       \
    KERNEL_THREAD(t);                                                  \
    SLUICE_MOE_MEMORY;                                                 \
    if (is_other_shared(t, args)) {                                    \
      moe_gate_up<CodesQ4>(t, args, kFormatQ4, words, sides, partial); \
    } else {                                                           \
      moe_gate_up<Codes>(t, args, format, words, sides, partial);      \
    }                                                                  \
  }                                                                    \
  KERNEL_RESIDENT(moe_down_##name, MoeArgs, kMoeThreads, 2) {          \
    KERNEL_THREAD_EARLY(t);                                            \
    SLUICE_MOE_MEMORY;                                                 \
    if (is_other_shared(t, args)) {                                    \
      moe_down<CodesQ4>(t, args, kFormatQ4, words, sides, partial);    \
    } else {                                                           \
      moe_down<Codes>(t, args, format, words, sides, partial);         \
    }                                                                  \
  }
SLUICE_MOE(q8, CodesQ8, kFormatQ8)
SLUICE_MOE(q3, CodesQ3, kFormatQ3)
SLUICE_MOE(q2, CodesQ2, kFormatQ2)
#undef SLUICE_MOE
#undef SLUICE_MOE_MEMORY

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
/// Groups (parts of a row, rows): combine_slots, then gated_add_rows. Weights and gate are there before the
/// kernel before has ended, which makes y.
KERNEL(moe_combine, MoeCombineArgs, kMoeCombineThreads) {
  KERNEL_THREAD_EARLY(t);
  const u32 width = static_cast<u32>(args.width);
  const u32 slots = static_cast<u32>(args.slots);
  const u32 row = t.group_y;
  const u32 i = t.group_x * kMoeCombineThreads + t.index;
  const bool inside = i < width;
  const u32 at = inside ? i : 0;
  const f32 gate = args.shared_gate[row];
  f32 sum = 0;
  NO_UNROLL for (u32 first = 0; first < slots; first += kMoeCombineSlots) {
    f32 weight[kMoeCombineSlots];
    f32 y[kMoeCombineSlots];
    UNROLL for (u32 k = 0; k < kMoeCombineSlots; ++k) {
      weight[k] = first + k < slots ? static_cast<f32>(args.weight[row * slots + first + k]) : 0.0F;
    }
    if (first == 0) wait_for_kernel_before();
    UNROLL for (u32 k = 0; k < kMoeCombineSlots; ++k) {
      y[k] = 0;
      if (weight[k] != 0) y[k] = args.y[(row * slots + first + k) * width + at];
    }
    UNROLL for (u32 k = 0; k < kMoeCombineSlots; ++k) {
      if (weight[k] != 0) sum = fma_f32(y[k], weight[k], sum);
    }
  }
  if (!inside) return;
  args.out[row * width + i] = fma_f32(sigmoid(gate), args.shared[row * width + i], sum);
}

}  // namespace sluice::kernels

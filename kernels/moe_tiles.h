// The routed experts of a step of several rows, and the shared expert with them: as moe.h, but a SIMD group
// has tiles for itself and adds up their segments in registers.
//
// With several rows there are tiles for every SIMD group of the device. None waits for another then: while
// one waits for its weights, others multiply. The bits are the same.
#pragma once

#include "moe.h"

#define SLUICE_MOE_TILES_KERNELS(X) \
  X(moe_gate_up_tiles_q4)           \
  X(moe_gate_up_tiles_q8)           \
  X(moe_gate_up_tiles_q3)           \
  X(moe_gate_up_tiles_q2)           \
  X(moe_down_tiles_q4)              \
  X(moe_down_tiles_q8)              \
  X(moe_down_tiles_q3)              \
  X(moe_down_tiles_q2)

namespace sluice::kernels {

constexpr u32 kMoeTilesThreads = 128;
constexpr u32 kMoeTilesSimds = kMoeTilesThreads / 32;
constexpr u32 kMoeTilesResident = 5;  // groups of a multiprocessor
constexpr u32 kMoeTilesUnits = 40;    // of an entry at once: 21 KiB

/// The totals of a lane's four results, over one span at most.
struct TileSums {
  f32 of[4];
  DEVICE_FUNCTION void clear() {
    UNROLL for (u32 i = 0; i < 4; ++i) of[i] = 0;
  }
  DEVICE_FUNCTION void add(const MmaC& c) {
    UNROLL for (u32 i = 0; i < 4; ++i) of[i] += c.r[i];
  }
};
/// Of result number `i` of a lane: its column and its row of the tile.
DEVICE_FUNCTION u32 result_column(const Thread& t, u32 i) {
  return t.lane % 4 * 2 + i % 2;
}
DEVICE_FUNCTION u32 result_row(const Thread& t, u32 i) {
  return t.lane / 4 + i / 2 * 8;
}

/// The shared expert comes first: it has all rows, and would be the last to end.
DEVICE_FUNCTION u32 moe_number(const Thread& t, const MoeArgs& args) {
  if (t.groups_y == args.entries) return t.group_y;
  return t.group_y == 0 ? args.entries : t.group_y - 1;
}

/// Groups (tiles of the intermediate width in fours, the shared expert and the entries).
template <class Codes>
DEVICE_FUNCTION void moe_gate_up_tiles(const Thread& t, const MoeArgs& args, i32 format, Shared<f32> words,
                                       Shared<f32> sides) {
  const u32 number = moe_number(t, args);
  const MoeEntry entry = moe_entry(args, number, format, false);
  if (entry.none) return;
  const u32 inter = static_cast<u32>(args.experts.inter);
  const u32 tile = t.group_x * kMoeTilesSimds + t.simd;
  const bool present = tile * kTileRows < inter;
  const u32 columns = entry.end - entry.first;
  const u32 segments = (entry.a.in + kSegment - 1) / kSegment;
  const TileLane gate = tile_lane(t, entry.a, present ? tile : 0);
  TileLane up = gate;
  up.data = entry.b.data;
  up.scales = entry.b.scales;
  up.biases = entry.b.biases;
  // Each matrix's next segment is on its way while the other one's is multiplied.
  TileSegment<Codes, 4> codes[2];
  codes[0].load(t, gate, 0);
  codes[1].load(t, up, 0);
  const GroupUnits units = staged_units(t, words, sides, columns);
  const u32 round = kMoeTilesUnits / columns;  // segments whose rows are there at once
  TileSums gates;
  TileSums ups;
  gates.clear();
  ups.clear();
  NO_UNROLL for (u32 first = 0; first < segments; first += round) {
    const u32 now = min_of(round, segments - first);
    if (first > 0) barrier(t);
    copy_rounded(t, kMoeTilesSimds, args.round, Codes::kSideSet, entry.rows, columns, first, now, words,
                 sides);
    barrier(t);
    NO_UNROLL for (u32 s = 0; s < now; ++s) {
      const u32 next = min_of(first + s + 1, segments - 1);
      gates.add(codes[0].multiply(t, units, s));
      codes[0].load(t, gate, next);
      ups.add(codes[1].multiply(t, units, s));
      codes[1].load(t, up, next);
    }
  }
  const u32 base = number == args.entries ? entry.pairs : entry.first - entry.base;
  UNROLL for (u32 i = 0; i < 4; ++i) {
    const u32 column = result_column(t, i);
    if (!present || column >= columns) continue;
    args.experts.hidden_out[static_cast<i64>(base + column) * inter + tile * kTileRows + result_row(t, i)] =
        silu(gates.of[i]) * ups.of[i];
  }
}

/// Groups (tiles of the hidden width: `tiles` for each SIMD group; the shared expert and the entries).
template <class Codes>
DEVICE_FUNCTION void moe_down_tiles(const Thread& t, const MoeArgs& args, i32 format, Shared<f32> words,
                                    Shared<f32> sides) {
  const u32 number = moe_number(t, args);
  const MoeEntry entry = moe_entry(args, number, format, true);
  if (entry.none) return wait_for_kernel_before();
  const ExpertsArgs& x = args.experts;
  const u32 tiles = static_cast<u32>(x.tiles);
  const u32 all = static_cast<u32>(x.hidden) / kTileRows;
  const u32 tile0 = min_of((t.group_x * kMoeTilesSimds + t.simd) * tiles, all);
  const u32 end = min_of(tile0 + tiles, all);
  const u32 columns = entry.end - entry.first;
  const u32 segments = (entry.a.in + kSegment - 1) / kSegment;
  // Two segments are on their way while one is multiplied.
  TileSegment<Codes, 2> codes[2];
  u32 loaded = tile0;  // the tile and segment that are loaded next
  u32 ahead = 0;
  UNROLL for (u32 i = 0; i < 2; ++i) {
    codes[i].load(t, tile_lane(t, entry.a, min_of(loaded, all - 1)), ahead);
    ahead = ahead + 1 == segments ? 0 : ahead + 1;
    loaded += ahead == 0 ? 1U : 0U;
  }
  wait_for_kernel_before();
  stage_rows(t, kMoeTilesSimds, entry.rows, entry.a.in, columns, 0, segments,
             read_unit(t, entry.rows, entry.a.in, columns, 0, t.simd, segments * columns), Codes::kUnit, words,
             sides);
  // Where each of the lane's two columns goes.
  Global<f32> to[2];
  UNROLL for (u32 i = 0; i < 2; ++i) {
    const u32 column = min_of(result_column(t, i), columns - 1);
    if (number == args.entries) {
      to[i] = args.shared_y + static_cast<i64>(column) * x.hidden;
    } else {
      const u32 pair = entry.first + column;
      to[i] = x.y + (static_cast<i64>(x.pair_row[pair]) * x.slots + x.pair_slot[pair]) * x.hidden;
    }
  }
  const GroupUnits units = staged_units(t, words, sides, columns);
  const u32 rest = entry.a.in / kBlock - (segments - 1) * kSegmentBlocks;  // blocks of the last segment
  barrier(t);
  TileSums sums;
  sums.clear();
  u32 segment = 0;
  NO_UNROLL for (u32 tile = tile0; tile < end;) {
    UNROLL for (u32 i = 0; i < 2; ++i) {
      if (tile >= end) break;
      const bool finishes = segment + 1 == segments;
      sums.add(codes[i].template multiply_blocks<true>(t, units, segment, finishes ? rest : kSegmentBlocks));
      codes[i].load(t, tile_lane(t, entry.a, min_of(loaded, all - 1)), ahead);
      ahead = ahead + 1 == segments ? 0 : ahead + 1;
      loaded += ahead == 0 ? 1U : 0U;
      segment = finishes ? 0 : segment + 1;
      if (!finishes) continue;
      UNROLL for (u32 k = 0; k < 4; ++k) {
        if (result_column(t, k) < columns) to[k % 2][tile * kTileRows + result_row(t, k)] = sums.of[k];
      }
      sums.clear();
      ++tile;
    }
  }
}

/// Whether a group of another precision's kernel has the shared expert of 4 bits.
DEVICE_FUNCTION bool is_first_other(const Thread& t, const MoeArgs& args) {
  return t.groups_y != args.entries && t.group_y == 0 && args.shared_format == kFormatQ4;
}

#define SLUICE_MOE_TILES_MEMORY                 \
  SHARED(f32, words, kMoeTilesUnits* kUnitWords); \
  SHARED(f32, sides, kMoeTilesUnits* kUnitSides)
KERNEL_RESIDENT(moe_gate_up_tiles_q4, MoeArgs, kMoeTilesThreads, kMoeTilesResident) {
  KERNEL_THREAD(t);
  SLUICE_MOE_TILES_MEMORY;
  moe_gate_up_tiles<CodesQ4>(t, args, kFormatQ4, words, sides);
}
KERNEL_RESIDENT(moe_down_tiles_q4, MoeArgs, kMoeTilesThreads, kMoeTilesResident) {
  KERNEL_THREAD_EARLY(t);
  SLUICE_MOE_TILES_MEMORY;
  moe_down_tiles<CodesQ4>(t, args, kFormatQ4, words, sides);
}
#define SLUICE_MOE_TILES(name, Codes, format)                                               \
  KERNEL_RESIDENT(moe_gate_up_tiles_##name, MoeArgs, kMoeTilesThreads, kMoeTilesResident) { \
    KERNEL_THREAD(t);                                                                       \
    SLUICE_MOE_TILES_MEMORY;                                                                \
    if (is_first_other(t, args)) {                                                          \
      moe_gate_up_tiles<CodesQ4>(t, args, kFormatQ4, words, sides);                         \
    } else {                                                                                \
      moe_gate_up_tiles<Codes>(t, args, format, words, sides);                              \
    }                                                                                       \
  }                                                                                         \
  KERNEL_RESIDENT(moe_down_tiles_##name, MoeArgs, kMoeTilesThreads, kMoeTilesResident) {    \
    KERNEL_THREAD_EARLY(t);                                                                 \
    SLUICE_MOE_TILES_MEMORY;                                                                \
    if (is_first_other(t, args)) {                                                          \
      moe_down_tiles<CodesQ4>(t, args, kFormatQ4, words, sides);                            \
    } else {                                                                                \
      moe_down_tiles<Codes>(t, args, format, words, sides);                                 \
    }                                                                                       \
  }
SLUICE_MOE_TILES(q8, CodesQ8, kFormatQ8)
SLUICE_MOE_TILES(q3, CodesQ3, kFormatQ3)
SLUICE_MOE_TILES(q2, CodesQ2, kFormatQ2)
#undef SLUICE_MOE_TILES
#undef SLUICE_MOE_TILES_MEMORY

}  // namespace sluice::kernels

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
constexpr u32 kMoeTilesResident = 6;  // groups of a multiprocessor
constexpr u32 kMoeUpUnits = 20;       // of an entry at once: 11 KiB
constexpr u32 kMoeUpSides = 2560;     // scales and biases of a SIMD group's tiles: of gate and of up
constexpr u32 kMoeDownUnits = 24;
constexpr u32 kMoeDownSides = 1920;

/// The totals of a lane's four results, over one span at most.
struct TileSums {
  f32 of[4];
  DEVICE_FUNCTION void clear() { UNROLL for (u32 i = 0; i < 4; ++i) of[i] = 0; }
  DEVICE_FUNCTION void add(const MmaC& c) { UNROLL for (u32 i = 0; i < 4; ++i) of[i] += c.r[i]; }
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

/// Brings the scales and the biases of some neighbouring tiles near, one after the other: by a SIMD group,
/// for which a barrier must follow.
DEVICE_FUNCTION void copy_sides(const Thread& t, const TileMatrix& w, u32 tile, u32 tiles, Shared<u16> to) {
  const u32 count = tiles * kTileRows * w.groups;
  const u32 from = tile * kTileRows * w.groups;
  NO_UNROLL for (u32 i = t.lane * 8; i < count; i += 256) {
    copy16_async(to, i, w.scales, from + i);
    copy16_async(to, count + i, w.biases, from + i);
  }
}

/// Groups (tiles of the intermediate width in fours, the shared expert and the entries).
template <class Codes>
DEVICE_FUNCTION void moe_gate_up_tiles(const Thread& t, const MoeArgs& args, i32 format, Shared<f32> words,
                                       Shared<f32> sides, Shared<u16> near) {
  const u32 number = moe_number(t, args);
  const MoeEntry entry = moe_entry(args, number, format, false);
  if (entry.none) return;
  const u32 inter = static_cast<u32>(args.experts.inter);
  const u32 last = inter / kTileRows - 1;
  const u32 tile = t.group_x * kMoeTilesSimds + t.simd;
  const bool present = tile <= last;
  const u32 own = (min_of(tile, last) * kTileRows + t.lane / 4) * entry.a.row_bytes;  // the lane's first row
  const Global<const u8> gate = entry.a.data + own;
  const Global<const u8> up = entry.b.data + own;
  const u32 step = 8 * entry.a.row_bytes;
  // Each matrix's next segment is on its way while the other one's is multiplied.
  TileCodes<Codes, true> codes[2];
  codes[0].load(t, gate, step, 0, 0);
  codes[1].load(t, up, step, 0, 0);
  const u32 columns = entry.end - entry.first;
  const u32 segments = entry.a.in / kSegment;
  const u32 groups = entry.a.groups;
  const Shared<u16> own_near = near + t.simd * kMoeUpSides;
  copy_sides(t, entry.a, min_of(tile, last), 1, own_near);
  copy_sides(t, entry.b, min_of(tile, last), 1, own_near + 2 * kTileRows * groups);
  const Shared<u16> scales = own_near + t.lane / 4 * groups;
  const GroupUnits units = staged_units(t, words, sides, columns);
  const u32 round = kMoeUpUnits / columns;  // segments whose rows are there at once
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
      const Shared<u16> side = scales + (first + s) * kSegmentBlocks;
      gates.add(codes[0].multiply(t, units, s, side, 8 * groups, kTileRows * groups, kSegmentBlocks));
      codes[0].load(t, gate, step, next, 0);
      ups.add(codes[1].multiply(t, units, s, side + 2 * kTileRows * groups, 8 * groups, kTileRows * groups,
                                kSegmentBlocks));
      codes[1].load(t, up, step, next, 0);
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

/// What a SIMD group loads next on the way down: its tiles' segments one after another.
struct DownAhead {
  u32 tile, segment;
};
template <class Codes>
DEVICE_FUNCTION void load_ahead(const Thread& t, const TileMatrix& w, u32 last, u32 segments,
                                DownAhead& ahead, TileCodes<Codes, false>& codes) {
  const u32 row = min_of(ahead.tile, last) * kTileRows + t.lane / 4;
  codes.load(t, w.data + row * w.row_bytes, 8 * w.row_bytes, ahead.segment, w.in / kBlock - 1);
  const bool finishes = ahead.segment + 1 == segments;
  ahead.segment = finishes ? 0 : ahead.segment + 1;
  ahead.tile += finishes ? 1U : 0U;
}

/// Groups (tiles of the hidden width: `tiles` for each SIMD group; the shared expert and the entries).
template <class Codes>
DEVICE_FUNCTION void moe_down_tiles(const Thread& t, const MoeArgs& args, i32 format, Shared<f32> words,
                                    Shared<f32> sides, Shared<u16> near) {
  const u32 number = moe_number(t, args);
  const MoeEntry entry = moe_entry(args, number, format, true);
  if (entry.none) return wait_for_kernel_before();
  const ExpertsArgs& x = args.experts;
  const TileMatrix w = entry.a;
  const u32 all = static_cast<u32>(x.hidden) / kTileRows;
  const u32 tile0 = min_of((t.group_x * kMoeTilesSimds + t.simd) * static_cast<u32>(x.tiles), all);
  const u32 end = min_of(tile0 + static_cast<u32>(x.tiles), all);
  const u32 columns = entry.end - entry.first;
  const u32 segments = (w.in + kSegment - 1) / kSegment;
  // Two segments are on their way while one is multiplied.
  TileCodes<Codes, false> codes[2];
  DownAhead ahead{tile0, 0};
  UNROLL for (u32 i = 0; i < 2; ++i) load_ahead(t, w, all - 1, segments, ahead, codes[i]);
  const Shared<u16> own_near = near + t.simd * kMoeDownSides;
  const u32 biases = (end - tile0) * kTileRows * w.groups;
  copy_sides(t, w, tile0, end - tile0, own_near);
  async_commit();
  const Shared<u16> scales = own_near + t.lane / 4 * w.groups;
  wait_for_kernel_before();
  stage_rows(t, kMoeTilesSimds, entry.rows, w.in, columns, 0, segments,
             read_unit(t, entry.rows, w.in, columns, 0, t.simd, segments * columns), Codes::kUnit, words,
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
  const u32 rest = w.in / kBlock - (segments - 1) * kSegmentBlocks;  // blocks of the last segment
  async_wait<0>();
  barrier(t);
  TileSums sums;
  sums.clear();
  u32 segment = 0;
  NO_UNROLL for (u32 tile = tile0; tile < end;) {
    UNROLL for (u32 i = 0; i < 2; ++i) {
      if (tile >= end) break;
      const bool finishes = segment + 1 == segments;
      const Shared<u16> side = scales + ((tile - tile0) * kTileRows * w.groups + segment * kSegmentBlocks);
      sums.add(
          codes[i].multiply(t, units, segment, side, 8 * w.groups, biases, finishes ? rest : kSegmentBlocks));
      load_ahead(t, w, all - 1, segments, ahead, codes[i]);
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

#define SLUICE_MOE_TILES(name, what, of, begin, Codes, format)          \
  KERNEL_RESIDENT(name, MoeArgs, kMoeTilesThreads, kMoeTilesResident) { \
    begin(t);                                                           \
    SHARED(f32, words, kMoe##of##Units* kUnitWords);                    \
    SHARED(f32, sides, kMoe##of##Units* kUnitSides);                    \
    SHARED(u16, near, kMoeTilesSimds* kMoe##of##Sides);                 \
    if (format != kFormatQ4 && is_first_other(t, args)) {               \
      what<CodesQ4>(t, args, kFormatQ4, words, sides, near);            \
    } else {                                                            \
      what<Codes>(t, args, format, words, sides, near);                 \
    }                                                                   \
  }
SLUICE_MOE_TILES(moe_gate_up_tiles_q4, moe_gate_up_tiles, Up, KERNEL_THREAD, CodesQ4, kFormatQ4)
SLUICE_MOE_TILES(moe_gate_up_tiles_q8, moe_gate_up_tiles, Up, KERNEL_THREAD, CodesQ8, kFormatQ8)
SLUICE_MOE_TILES(moe_gate_up_tiles_q3, moe_gate_up_tiles, Up, KERNEL_THREAD, CodesQ3, kFormatQ3)
SLUICE_MOE_TILES(moe_gate_up_tiles_q2, moe_gate_up_tiles, Up, KERNEL_THREAD, CodesQ2, kFormatQ2)
SLUICE_MOE_TILES(moe_down_tiles_q4, moe_down_tiles, Down, KERNEL_THREAD_EARLY, CodesQ4, kFormatQ4)
SLUICE_MOE_TILES(moe_down_tiles_q8, moe_down_tiles, Down, KERNEL_THREAD_EARLY, CodesQ8, kFormatQ8)
SLUICE_MOE_TILES(moe_down_tiles_q3, moe_down_tiles, Down, KERNEL_THREAD_EARLY, CodesQ3, kFormatQ3)
SLUICE_MOE_TILES(moe_down_tiles_q2, moe_down_tiles, Down, KERNEL_THREAD_EARLY, CodesQ2, kFormatQ2)
#undef SLUICE_MOE_TILES

}  // namespace sluice::kernels

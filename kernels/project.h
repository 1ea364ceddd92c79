// Several projections of the same few rows in one launch: the decode step's matrices.
//
// Bits are those of matvec.h and plain.h.
#pragma once

#include "plain.h"
#include "stage.h"

#define SLUICE_PROJECT_KERNELS(X) \
  X(project_q4)                   \
  X(project_q8)

namespace sluice::kernels {

constexpr u32 kProjectThreads = 256;
constexpr u32 kProjectSimds = kProjectThreads / 32;
constexpr u32 kProjectCoded = 5;   // matrices for the matrix units, of one launch at most
constexpr u32 kProjectPlain = 4;   // others
constexpr u32 kProjectTiles = 8;   // of a group at most
constexpr u32 kProjectUnits = 23;  // staged at once
constexpr u32 kProjectTasks = 32;  // partial sums at once: 16 KiB

struct ProjectArgs {
  Weights coded[kProjectCoded];
  Global<f32> coded_y[kProjectCoded];
  Weights plain[kProjectPlain];
  Global<f32> plain_y[kProjectPlain];
  Global<const f32> x;  // [rows][in]
  i64 in;
  u32 rows;                            // 1 to 8
  u32 first_tile[kProjectCoded + 1];   // tiles of the coded matrices, one after another
  u32 first_plain[kProjectPlain + 1];  // outputs of the others
  u32 tiles;                           // of a group
  u32 coded_groups;                    // then come those of the others
  i32 silu;                            // of the first coded matrix: y = silu(W x / div)
  f32 div;
};

/// Which of the matrices a tile of the whole launch belongs to.
DEVICE_FUNCTION u32 matrix_of_tile(const ProjectArgs& args, u32 tile) {
  u32 m = 0;
  UNROLL for (u32 i = 1; i < kProjectCoded; ++i) m += tile >= args.first_tile[i] ? 1U : 0U;
  return m;
}

template <class Codes>
DEVICE_FUNCTION void project(const Thread& t, const ProjectArgs& args, Shared<u32> words, Shared<f32> sides,
                             Shared<f32> partial) {
  if (t.group_x >= args.coded_groups) {
    const u32 output = (t.group_x - args.coded_groups) * kProjectSimds + t.simd;
    if (output >= args.first_plain[kProjectPlain]) return;
    u32 m = 0;
    UNROLL for (u32 i = 1; i < kProjectPlain; ++i) m += output >= args.first_plain[i] ? 1U : 0U;
    const Weights w = args.plain[m];
    const u32 place = output - args.first_plain[m];
    NO_UNROLL for (u32 row = 0; row < args.rows; ++row) {
      const f32 y = plain_output(t, w, place, args.x + static_cast<i64>(row) * args.in);
      if (t.lane == 0) args.plain_y[m][static_cast<i64>(row) * w.out + place] = y;
    }
    return;
  }
  const u32 tile0 = t.group_x * args.tiles;
  const u32 tiles = min_of(args.tiles, args.first_tile[kProjectCoded] - tile0);
  const u32 segments = static_cast<u32>(segments_of(args.in));
  const u32 round = min_of(kProjectUnits / args.rows, kProjectTasks / args.tiles);
  SpanSum total[kProjectTiles * kTile / kProjectThreads];
  UNROLL for (u32 k = 0; k < kProjectTiles * kTile / kProjectThreads; ++k) total[k].clear();
  stage_zeros(t, words, sides, kProjectUnits);
  NO_UNROLL for (u32 first = 0; first < segments; first += round) {
    const u32 now = min_of(round, segments - first);
    const u32 tasks = now * tiles;
    const u32 each = (tasks + kProjectSimds - 1) / kProjectSimds;
    const u32 end = min_of(tasks, (t.simd + 1) * each);
    u32 task = t.simd * each;
    // The place of the task that is loaded, and of the one that is multiplied: tiles of a segment, then the
    // next.
    u32 load_segment = task / tiles;
    u32 load_tile = task % tiles;
    u32 segment = load_segment;
    TileSegment<Codes> next;
    if (task < end) {
      const u32 m = matrix_of_tile(args, tile0 + load_tile);
      const Weights w = args.coded[m];
      next.load(t, w, tile0 + load_tile - args.first_tile[m], first + load_segment);
    }
    stage_rows(t, kProjectThreads, StagedRows{args.x, nullptr, 0}, args.in, args.rows, first, now, words,
               sides);
    barrier(t);
    SegmentColumns<1> columns;
    bool fresh = true;  // the segment is not in columns yet
    NO_UNROLL for (; task < end; ++task) {
      const TileSegment<Codes> current = next;
      const u32 now_segment = segment;
      ++load_tile;
      if (load_tile == tiles) {
        load_tile = 0;
        ++load_segment;
      }
      if (task + 1 < end) {
        const u32 m = matrix_of_tile(args, tile0 + load_tile);
        const Weights w = args.coded[m];
        next.load(t, w, tile0 + load_tile - args.first_tile[m], first + load_segment);
      }
      if (fresh) staged_columns(t, words, sides, now_segment, args.rows, kProjectUnits, columns);
      fresh = load_segment != now_segment;
      segment = load_segment;
      put_partial(t, partial + static_cast<i64>(task) * kTile,
                  current.multiply(t, blocks_of(args.in, first + now_segment), columns));
    }
    barrier(t);
    UNROLL for (u32 k = 0; k < kProjectTiles * kTile / kProjectThreads; ++k) {
      const u32 e = t.index + k * kProjectThreads;
      if (e >= tiles * kTile) continue;
      u32 place = first % kSpanSegments;
      for (u32 s = 0; s < now; ++s) {
        total[k].add(place, partial[(s * tiles + e / kTile) * kTile + e % kTile]);
        place = place + 1 == kSpanSegments ? 0 : place + 1;
      }
    }
    barrier(t);
  }
  UNROLL for (u32 k = 0; k < kProjectTiles * kTile / kProjectThreads; ++k) {
    const u32 e = t.index + k * kProjectThreads;
    if (e >= tiles * kTile) continue;
    const u32 tile = tile0 + e / kTile;
    const u32 m = matrix_of_tile(args, tile);
    const i64 output = static_cast<i64>(tile - args.first_tile[m]) * kTileRows + e % kTileRows;
    const u32 row = e % kTile / kTileRows;
    const i64 out = args.coded[m].out;
    if (row >= args.rows || output >= out) continue;
    f32 y = total[k].sum();
    if (args.silu != 0 && m == 0) y = silu(y / args.div);
    args.coded_y[m][static_cast<i64>(row) * out + output] = y;
  }
}

#define SLUICE_PROJECT(name, Codes)                        \
  KERNEL_RESIDENT(name, ProjectArgs, kProjectThreads, 2) { \
    KERNEL_THREAD(t);                                      \
    SHARED(u32, words, (kProjectUnits + 1) * kUnitWords);  \
    SHARED(f32, sides, (kProjectUnits + 1) * kUnitSides);  \
    SHARED(f32, partial, kProjectTasks* kTile);            \
    project<Codes>(t, args, words, sides, partial);        \
  }
SLUICE_PROJECT(project_q4, CodesQ4)
SLUICE_PROJECT(project_q8, CodesQ8)
#undef SLUICE_PROJECT

}  // namespace sluice::kernels

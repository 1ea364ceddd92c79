// Several projections of the same few rows in one launch: the decode step's matrices.
//
// Bits are those of matvec.h and plain.h.
#pragma once

#include "plain.h"
#include "stage.h"

#define SLUICE_PROJECT_KERNELS(X) \
  X(round_rows)                   \
  X(project_q4)                   \
  X(project_q8)                   \
  X(project_rounded_q4)           \
  X(project_rounded_q8)

namespace sluice::kernels {

constexpr u32 kProjectThreads = 320;  // a SIMD group for each segment of the released model's width
constexpr u32 kProjectSimds = kProjectThreads / 32;
constexpr u32 kProjectCoded = 5;               // matrices for the matrix units, of one launch at most
constexpr u32 kProjectPlain = 4;               // others
constexpr u32 kProjectTiles = 5;               // of a group at most
constexpr u32 kProjectUnits = 40;              // staged at once: 21 KiB
constexpr u32 kProjectPartials = 2560;         // partial sums at once: 10 KiB
constexpr u32 kProjectRoundedPartials = 8000;  // of rows that were rounded beforehand
constexpr u32 kProjectResults = kProjectTiles * kTile / kProjectThreads;  // of a thread
static_assert(kProjectTiles * kTile % kProjectThreads == 0 && kProjectTiles * kTile <= kProjectPartials,
              "threads share the results of a group evenly");

struct ProjectArgs {
  Weights coded[kProjectCoded];
  Global<f32> coded_y[kProjectCoded];
  Weights plain[kProjectPlain];
  Global<f32> plain_y[kProjectPlain];
  Global<const f32> x;  // [rows][in]
  RoundArgs round;      // the same, rounded beforehand
  i64 in;
  u32 rows;                            // 1 to 8
  u32 first_tile[kProjectCoded + 1];   // tiles of the coded matrices, one after another
  u32 first_plain[kProjectPlain + 1];  // outputs of the others
  u32 tiles;                           // of a group
  u32 coded_groups;                    // of so many groups each takes every so many batches of tiles
  i32 silu;                            // of the first coded matrix: y = silu(W x / div)
  f32 div;
};

/// Which of the matrices a tile of the whole launch belongs to.
DEVICE_FUNCTION u32 matrix_of_tile(const ProjectArgs& args, u32 tile) {
  u32 m = 0;
  UNROLL for (u32 i = 1; i < kProjectCoded; ++i) m += tile >= args.first_tile[i] ? 1U : 0U;
  return m;
}

constexpr u32 kRoundThreads = 128;
/// A unit a SIMD group.
KERNEL(round_rows, RoundArgs, kRoundThreads) {
  KERNEL_THREAD(t);
  round_one(t, args, t.group_x * (kRoundThreads / 32) + t.simd);
}

constexpr u32 kPlainTogether = 4;  // rows that share the weights' way to float32
/// A SIMD group takes every so many of the outputs, each for up to so many rows.
DEVICE_FUNCTION void project_plain(const Thread& t, const ProjectArgs& args) {
  const u32 outputs = args.first_plain[kProjectPlain];
  const u32 all = outputs * ((args.rows + kPlainTogether - 1) / kPlainTogether);
  const u32 stride = (t.groups_x - args.coded_groups) * kProjectSimds;
  bool waits = true;
  NO_UNROLL for (u32 task = (t.group_x - args.coded_groups) * kProjectSimds + t.simd; waits || task < all;
                 task += stride) {
    const bool present = task < all;
    // All outputs for the first rows, then for the next.
    u32 row = 0;
    u32 output = present ? task : 0;
    NO_UNROLL while (output >= outputs) {
      output -= outputs;
      row += kPlainTogether;
    }
    const u32 end = min_of(args.rows, row + kPlainTogether);
    u32 m = 0;
    UNROLL for (u32 i = 1; i < kProjectPlain; ++i) m += output >= args.first_plain[i] ? 1U : 0U;
    const Weights w = args.plain[m];
    const u32 place = output - args.first_plain[m];
    const bool one_span = w.format == kFormatBf16 && w.in <= kPlainSpan;
    PlainSpan span;
    if (one_span) span.load(t, w.data + static_cast<i64>(place) * w.row_bytes, static_cast<u32>(w.in));
    if (waits) wait_for_kernel_before();
    waits = false;
    if (!present) return;
    if (one_span && row + kPlainTogether <= args.rows) {
      f32 y[kPlainTogether];
      span.dot<kPlainTogether>(t, args.x + static_cast<i64>(row) * args.in, static_cast<u32>(args.in),
                               static_cast<u32>(w.in), y);
      UNROLL for (u32 r = 0; r < kPlainTogether; ++r) {
        if (t.lane == 0) args.plain_y[m][static_cast<i64>(row + r) * w.out + place] = y[r];
      }
      continue;
    }
    NO_UNROLL for (; row < end; ++row) {
      const Global<const f32> x = args.x + static_cast<i64>(row) * args.in;
      f32 y = 0;
      if (one_span) {
        span.dot<1>(t, x, 0, static_cast<u32>(w.in), &y);
      } else {
        y = plain_output(t, w, place, x);
      }
      if (t.lane == 0) args.plain_y[m][static_cast<i64>(row) * w.out + place] = y;
    }
  }
}

/// Asks for a batch of tiles.
DEVICE_FUNCTION void project_fetch(const Thread& t, const ProjectArgs& args, TileMatrix w, u32 tile0) {
  const u32 end = min_of(tile0 + args.tiles, args.first_tile[kProjectCoded]);
  NO_UNROLL for (u32 tile = tile0; tile < end; ++tile) {
    const u32 m = matrix_of_tile(args, tile);
    w.data = args.coded[m].data;
    w.scales = args.coded[m].scales;
    w.biases = args.coded[m].biases;
    fetch_tiles(w, tile - args.first_tile[m], 1, t.index, kProjectThreads);
  }
}

/// `memory`: of rows that are rounded here, their words, their sides and the partial sums; else these alone.
template <class Codes, bool kRounded, class Units>
DEVICE_FUNCTION void project(const Thread& t, const ProjectArgs& args, const Units& units,
                             Shared<f32> memory) {
  if (t.group_x >= args.coded_groups) return project_plain(t, args);
  const u32 rows = args.rows;
  const u32 in = static_cast<u32>(args.in);
  const u32 all_tiles = args.first_tile[kProjectCoded];
  const u32 segments = (in + kSegment - 1) / kSegment;
  const u32 width = rows * kTileRows;  // of a tile's partial sums
  const Shared<f32> words = memory;
  const Shared<f32> sides = memory + kProjectUnits * kUnitWords;
  const Shared<f32> partial = kRounded ? memory : sides + kProjectUnits * kUnitSides;
  const u32 round = kRounded ? kProjectRoundedPartials / (args.tiles * width)
                             : min_of(kProjectUnits / rows, kProjectPartials / (args.tiles * width));
  TileMatrix w = tile_matrix(args.coded[0]);  // all have the same rows
  bool waits = true;
  NO_UNROLL for (u32 tile0 = t.group_x * args.tiles; tile0 < all_tiles;
                 tile0 += args.coded_groups * args.tiles) {
    const u32 tiles = min_of(args.tiles, all_tiles - tile0);
    if (waits && tiles > 1) project_fetch(t, args, w, tile0);
    SpanSum total[kProjectResults];
    UNROLL for (u32 k = 0; k < kProjectResults; ++k) total[k].clear();
    NO_UNROLL for (u32 first = 0; first < segments; first += round) {
      const u32 now = min_of(round, segments - first);
      const u32 tasks = now * tiles;
      const u32 each = (tasks + kProjectSimds - 1) / kProjectSimds;
      const u32 begin = t.simd * each;
      const u32 end = min_of(tasks, begin + each);
      // Rows that are staged as a whole stay there for all of a group's batches.
      const bool stages = waits || round < segments;
      // Tasks are the tiles of a segment, then those of the next. Two are loaded, then multiplied; the first
      // two are loaded before the rows are rounded. One that is not there is another one's loads again.
      NO_UNROLL for (u32 task = begin;; task += 2) {
        TileSegment<Codes, 4> codes[2];
        u32 segment[2];
        UNROLL for (u32 i = 0; i < 2; ++i) {
          const u32 now_task = min_of(task + i, tasks - 1);
          segment[i] = now_task / tiles;
          const u32 tile = tile0 + (now_task - segment[i] * tiles);
          const u32 m = matrix_of_tile(args, tile);
          w.data = args.coded[m].data;
          w.scales = args.coded[m].scales;
          w.biases = args.coded[m].biases;
          codes[i].load(t, w, tile - args.first_tile[m], first + segment[i]);
        }
        if (task == begin && stages) {
          if (waits) wait_for_kernel_before();
          waits = false;
          if (!kRounded) {
            const StagedRows from{args.x, nullptr, 0};
            stage_rows(t, kProjectSimds, from, in, rows, first, now,
                       read_unit(t, from, in, rows, first, t.simd, now * rows), Codes::kUnit, words, sides);
            barrier(t);
          }
        }
        UNROLL for (u32 i = 0; i < 2; ++i) {
          if (task + i < end)
            put_rows(t, partial + (task + i) * width, rows,
                     codes[i].multiply(t, units, segment[i] + (kRounded ? first : 0)));
        }
        if (task + 2 >= end) break;
      }
      barrier(t);
      UNROLL for (u32 k = 0; k < kProjectResults; ++k) {
        const u32 e = t.index + k * kProjectThreads;
        if (e < tiles * width) add_partials(partial, tiles * width, e, first, now, total[k]);
      }
      barrier(t);
    }
    UNROLL for (u32 k = 0; k < kProjectResults; ++k) {
      const u32 e = t.index + k * kProjectThreads;
      if (e >= tiles * width) continue;
      const u32 tile = tile0 + e / width;
      const u32 m = matrix_of_tile(args, tile);
      const u32 row = e % width / kTileRows;
      const u32 output = (tile - args.first_tile[m]) * kTileRows + e % kTileRows;
      const u32 out = static_cast<u32>(args.coded[m].out);
      if (output >= out) continue;
      f32 y = total[k].sum();
      if (args.silu != 0 && m == 0) y = silu(y / args.div);
      args.coded_y[m][static_cast<i64>(row) * out + output] = y;
    }
  }
}

constexpr u32 kProjectMemory = kProjectUnits * (kUnitWords + kUnitSides) + kProjectPartials;
static_assert(kProjectMemory >= kProjectRoundedPartials, "the same memory");
#define SLUICE_PROJECT(name, Codes)                                                                         \
  KERNEL_RESIDENT(project_##name, ProjectArgs, kProjectThreads, 2) {                                        \
    KERNEL_THREAD_EARLY(t);                                                                                 \
    SHARED(f32, memory, kProjectMemory);                                                                    \
    project<Codes, false>(t, args, staged_units(t, memory, memory + kProjectUnits * kUnitWords, args.rows), \
                          memory);                                                                          \
  }                                                                                                         \
  KERNEL_RESIDENT(project_rounded_##name, ProjectArgs, kProjectThreads, 2) {                                \
    KERNEL_THREAD_EARLY(t);                                                                                 \
    SHARED(f32, memory, kProjectMemory);                                                                    \
    project<Codes, true>(                                                                                   \
        t, args, rounded_units(t, args.round, Codes::kSideSet, StagedRows{args.x, nullptr, 0}, args.rows),  \
        memory);                                                                                            \
  }
SLUICE_PROJECT(q4, CodesQ4)
SLUICE_PROJECT(q8, CodesQ8)
#undef SLUICE_PROJECT

}  // namespace sluice::kernels

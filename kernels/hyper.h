// The read of the wide residual of a decode step's few rows, in two launches: what is pending is injected,
// the streams are normalised, the bottleneck and the gates of the next injection come from them; then the
// streams' gated mean (model.md 3.3). The bits are those of norm_streams, the projections and mix_streams.
#pragma once

#include "project.h"
#include "wide.h"

#define SLUICE_HYPER_KERNELS(X) \
  X(hyper_down_q4)              \
  X(hyper_down_q8)              \
  X(hyper_up_q4)                \
  X(hyper_up_q8)

namespace sluice::kernels {

constexpr u32 kHyperStreams = 4;
constexpr u32 kHyperThreads = 256;
constexpr u32 kHyperSimds = kHyperThreads / 32;
constexpr u32 kHyperRows = 8;
constexpr u32 kHyperUnits = 40;                                         // staged at once: 20 KiB
constexpr i64 kHyperSpan = static_cast<i64>(kSpanSegments) * kSegment;  // also plain_output's span
static_assert(kHyperSpan == kPlainSpan && kHyperThreads == kStreamThreads,
              "orders of summation must be the same");

struct HyperArgs {
  Global<f32> wide;            // [rows][4][width]
  Global<const f32> out;       // [rows][width]: what is injected, or null
  Global<const f32> out_gate;  // [rows][4]
  Global<const f32> norm;      // [4][width]
  Weights down;                // [lowrank][4 width]
  Weights up;                  // [4 width][lowrank]
  Weights inject;              // [4][4 width], of any format; no outputs: none
  Global<f32> low;             // [spans][rows][lowrank]: sums of spans
  Global<f32> gates;           // [spans][rows][4]
  Global<f32> scale;           // [rows][4]: each stream's 1 / rms
  Global<f32> inject_gate;     // [rows][4]: not out_gate
  Global<f32> mixed;           // [rows][width]
  i64 width;
  u32 rows, spans;
  f32 div, eps;
};

/// An element quad of a stream with what is injected.
DEVICE_FUNCTION f32x4 hyper_quad(const HyperArgs& args, u32 row, u32 stream, i64 at, f32 part) {
  const f32x4 v = load4f(args.wide, (static_cast<i64>(row) * kHyperStreams + stream) * args.width + at);
  if (args.out == nullptr) return v;
  return quad_fma(load4f(args.out, static_cast<i64>(row) * args.width + at), part, v);
}
DEVICE_FUNCTION f32 hyper_part(const HyperArgs& args, u32 row, u32 stream) {
  if (args.out == nullptr) return 0;
  return injected_part(args.out_gate[static_cast<i64>(row) * kHyperStreams + stream], kHyperStreams);
}
DEVICE_FUNCTION f32x4 hyper_normed(const HyperArgs& args, u32 row, u32 stream, i64 at, f32 part, f32 scale) {
  const f32x4 v = quad_scale(hyper_quad(args, row, stream, at, part), scale);
  const f32x4 w = load4f(args.norm, static_cast<i64>(stream) * args.width + at);
  // As norm_streams with no shift.
  return f32x4{v.x * (w.x + 0.0F), v.y * (w.y + 0.0F), v.z * (w.z + 0.0F), v.w * (w.w + 0.0F)};
}

/// Groups (tiles of the bottleneck, then one for the gates; spans of the inputs).
template <class Codes>
DEVICE_FUNCTION void hyper_down(const Thread& t, const HyperArgs& args, Shared<u32> words, Shared<f32> sides,
                                Shared<f32> partial, Shared<f32> each, Shared<f32> scales) {
  const i64 in = static_cast<i64>(kHyperStreams) * args.width;
  const i64 begin = static_cast<i64>(t.group_y) * kHyperSpan;
  const i64 end = min_of(in, begin + kHyperSpan);
  const Weights down = args.down;
  const u32 tiles = static_cast<u32>((down.out + kTileRows - 1) / kTileRows);
  const bool gates = t.group_x >= tiles;
  const u32 segment0 = t.group_y * kSpanSegments;
  const u32 segments = static_cast<u32>((end - begin + kSegment - 1) / kSegment);
  TileSegment<Codes> codes[2];
  if (!gates) {
    UNROLL for (u32 i = 0; i < 2; ++i) {
      const u32 s = t.simd + i * kHyperSimds;
      if (s < segments) codes[i].load(t, down, t.group_x, segment0 + s);
    }
  }
  // The streams of the span: a stream's sum of squares as in norm_streams.
  NO_UNROLL for (u32 row = 0; row < args.rows; ++row) {
    for (u32 stream = static_cast<u32>(begin) / static_cast<u32>(args.width); stream * args.width < end;
         ++stream) {
      const f32 part = hyper_part(args, row, stream);
      f32 sum = 0;
      for (i64 at = 4 * static_cast<i64>(t.index); at < args.width; at += 4 * kStreamThreads) {
        const f32x4 v = hyper_quad(args, row, stream, at, part);
        sum = quad_dot(v, v, sum);
      }
      sum = group_sum(t, sum, each, kStreamSimds);
      if (t.index == 0) {
        const f32 scale = 1 / sqrt_f32(sum / static_cast<f32>(args.width) + args.eps);
        scales[row * kHyperStreams + stream] = scale;
        if (t.group_x == 0) args.scale[static_cast<i64>(row) * kHyperStreams + stream] = scale;
      }
    }
  }
  barrier(t);
  if (gates) {
    // A SIMD group a gate of one row: one of plain_output's spans.
    const Weights inject = args.inject;
    NO_UNROLL for (u32 task = t.simd; task < args.rows * kHyperStreams; task += kHyperSimds) {
      const u32 row = task / kHyperStreams;
      f32 sum = 0;
      NO_UNROLL for (i64 i = begin + t.lane * 8; i < end; i += 256) {
        const u32 s = static_cast<u32>(i) / static_cast<u32>(args.width);
        const f32 part = hyper_part(args, row, s);
        const f32 scale = scales[row * kHyperStreams + s];
        const i64 at = i - static_cast<i64>(s) * args.width;
        sum = eight_dot(eight_weights(inject, task % kHyperStreams, i),
                        hyper_normed(args, row, s, at, part, scale),
                        hyper_normed(args, row, s, at + 4, part, scale), sum);
      }
      sum = simd_sum(t, sum);
      if (t.lane == 0) args.gates[static_cast<i64>(t.group_y) * args.rows * kHyperStreams + task] = sum;
    }
    return;
  }
  stage_zeros(t, words, sides, kHyperUnits);
  SpanSum total;
  total.clear();
  const u32 round = min_of(kHyperUnits / args.rows, segments);
  NO_UNROLL for (u32 first = 0; first < segments; first += round) {
    const u32 now = min_of(round, segments - first);
    const u32 units = now * args.rows;
    NO_UNROLL for (u32 base = 0; base < units; base += kHyperThreads / 16) {
      const u32 unit = base + t.index / 16;
      const bool present = unit < units;
      const u32 row = present ? unit % args.rows : 0;
      const i64 i = begin + (first + (present ? unit / args.rows : 0)) * static_cast<i64>(kSegment) +
                    (t.lane / 4 % 4) * kBlock + t.lane % 4 * 16;
      const bool inside = present && i < end;
      const u32 s = inside ? static_cast<u32>(i) / static_cast<u32>(args.width) : 0;
      const f32 part = hyper_part(args, row, s);
      const f32 scale = scales[row * kHyperStreams + s];
      const i64 at = inside ? i - static_cast<i64>(s) * args.width : 0;
      f32 values[16];
      UNROLL for (u32 q = 0; q < 4; ++q) {
        f32x4 v{0, 0, 0, 0};
        if (inside) v = hyper_normed(args, row, s, at + 4 * q, part, scale);
        values[4 * q] = v.x, values[4 * q + 1] = v.y, values[4 * q + 2] = v.z, values[4 * q + 3] = v.w;
      }
      stage_values(t, values, present, words, sides, unit);
    }
    barrier(t);
    UNROLL for (u32 i = 0; i < 2; ++i) {
      const u32 s = t.simd + i * kHyperSimds;
      if (s < first || s >= first + now) continue;
      SegmentColumns<1> columns;
      staged_columns(t, words, sides, s - first, args.rows, kHyperUnits, columns);
      put_partial(t, partial + static_cast<i64>(s - first) * kTile,
                  codes[i].multiply(t, blocks_of(in, segment0 + s), columns));
    }
    barrier(t);
    if (t.index < kTile) {
      for (u32 s = 0; s < now; ++s) total.add(first + s, partial[s * kTile + t.index]);
    }
    barrier(t);
  }
  const i64 output = static_cast<i64>(t.group_x) * kTileRows + t.index % kTileRows;
  const u32 row = t.index / kTileRows;
  if (t.index >= kTile || row >= args.rows || output >= down.out) return;
  args.low[(static_cast<i64>(t.group_y) * args.rows + row) * down.out + output] = total.sum();
}

constexpr u32 kHyperUpSegments = 3;  // of the bottleneck at most: a unit for each and row
constexpr u32 kHyperLow = 2560;      // elements of the bottleneck of all rows at most
/// Groups: 16 outputs of the mean, a tile in each stream.
template <class Codes>
DEVICE_FUNCTION void hyper_up(const Thread& t, const HyperArgs& args, Shared<u32> words, Shared<f32> sides,
                              Shared<f32> partial, Shared<f32> low) {
  const Weights up = args.up;
  const u32 segments = static_cast<u32>(segments_of(up.in));
  const u32 tasks = segments * kHyperStreams;
  const u32 stream_tiles = static_cast<u32>(args.width) / kTileRows;
  TileSegment<Codes> codes[2];
  UNROLL for (u32 i = 0; i < 2; ++i) {
    const u32 task = t.simd + i * kHyperSimds;
    if (task < tasks)
      codes[i].load(t, up, (task % kHyperStreams) * stream_tiles + t.group_x, task / kHyperStreams);
  }
  stage_zeros(t, words, sides, kHyperUpSegments * kHyperRows);
  const u32 elements = args.rows * static_cast<u32>(up.in);
  NO_UNROLL for (u32 e = t.index; e < elements; e += kHyperThreads) {
    f32 total = 0;
    for (u32 s = 0; s < args.spans; ++s) total += args.low[static_cast<i64>(s) * elements + e];
    low[e] = silu(total / args.div);
  }
  if (t.group_x == 0 && args.inject.out > 0 && t.index < args.rows * kHyperStreams) {
    f32 total = 0;
    for (u32 s = 0; s < args.spans; ++s)
      total += args.gates[static_cast<i64>(s) * args.rows * kHyperStreams + t.index];
    args.inject_gate[t.index] = total;
  }
  barrier(t);
  const u32 units = segments * args.rows;
  NO_UNROLL for (u32 base = 0; base < units; base += kHyperThreads / 16) {
    const u32 unit = base + t.index / 16;
    const bool present = unit < units;
    const u32 row = present ? unit % args.rows : 0;
    const u32 i = (present ? unit / args.rows : 0) * kSegment + (t.lane / 4 % 4) * kBlock + t.lane % 4 * 16;
    f32 values[16];
    UNROLL for (u32 v = 0; v < 16; ++v) values[v] = 0;
    if (present && i < up.in) {
      UNROLL for (u32 v = 0; v < 16; ++v) values[v] = low[row * static_cast<u32>(up.in) + i + v];
    }
    stage_values(t, values, present, words, sides, unit);
  }
  barrier(t);
  UNROLL for (u32 i = 0; i < 2; ++i) {
    const u32 task = t.simd + i * kHyperSimds;
    if (task >= tasks) continue;
    SegmentColumns<1> columns;
    staged_columns(t, words, sides, task / kHyperStreams, args.rows, kHyperUpSegments * kHyperRows, columns);
    put_partial(t, partial + static_cast<i64>(task) * kTile,
                codes[i].multiply(t, blocks_of(up.in, task / kHyperStreams), columns));
  }
  barrier(t);
  const u32 row = t.index / kTileRows;
  if (t.index >= kTile || row >= args.rows) return;
  const i64 at = static_cast<i64>(t.group_x) * kTileRows + t.index % kTileRows;
  f32 sum = 0;
  UNROLL for (u32 s = 0; s < kHyperStreams; ++s) {
    SpanSum u;
    u.clear();
    for (u32 k = 0; k < segments; ++k) u.add(k, partial[(k * kHyperStreams + s) * kTile + t.index]);
    const i64 place = (static_cast<i64>(row) * kHyperStreams + s) * args.width + at;
    f32 v = args.wide[place];
    if (args.out != nullptr) {
      v = fma_f32(args.out[static_cast<i64>(row) * args.width + at], hyper_part(args, row, s), v);
      args.wide[place] = v;
    }
    const f32 normed = v * args.scale[static_cast<i64>(row) * kHyperStreams + s] *
                       (args.norm[static_cast<i64>(s) * args.width + at] + 0.0F);
    sum = fma_f32(sigmoid(u.sum()), normed, sum);
  }
  args.mixed[static_cast<i64>(row) * args.width + at] = sum / static_cast<f32>(kHyperStreams);
}

#define SLUICE_HYPER(name, Codes)                                         \
  KERNEL(hyper_down_##name, HyperArgs, kHyperThreads) {                   \
    KERNEL_THREAD(t);                                                     \
    SHARED(u32, words, (kHyperUnits + 1) * kUnitWords);                   \
    SHARED(f32, sides, (kHyperUnits + 1) * kUnitSides);                   \
    SHARED(f32, partial, kSpanSegments* kTile);                           \
    SHARED(f32, each, kHyperSimds);                                       \
    SHARED(f32, scales, kHyperRows* kHyperStreams);                       \
    hyper_down<Codes>(t, args, words, sides, partial, each, scales);      \
  }                                                                       \
  KERNEL_RESIDENT(hyper_up_##name, HyperArgs, kHyperThreads, 2) {         \
    KERNEL_THREAD(t);                                                     \
    SHARED(u32, words, (kHyperUpSegments * kHyperRows + 1) * kUnitWords); \
    SHARED(f32, sides, (kHyperUpSegments * kHyperRows + 1) * kUnitSides); \
    SHARED(f32, partial, kHyperUpSegments* kHyperStreams* kTile);         \
    SHARED(f32, low, kHyperLow);                                          \
    hyper_up<Codes>(t, args, words, sides, partial, low);                 \
  }
SLUICE_HYPER(q4, CodesQ4)
SLUICE_HYPER(q8, CodesQ8)
#undef SLUICE_HYPER

}  // namespace sluice::kernels

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
constexpr u32 kHyperThreads = 320;  // a SIMD group for each segment of a span
constexpr u32 kHyperSimds = kHyperThreads / 32;
constexpr u32 kHyperRows = 8;
constexpr u32 kHyperBatch = 4;                            // rows multiplied at once
constexpr u32 kHyperOwn = 2;                              // of those that a group normalises
constexpr u32 kHyperUnits = kSpanSegments * kHyperBatch;  // 21 KiB
constexpr u32 kHyperOwnUnits = kSpanSegments * kHyperOwn;
constexpr i64 kHyperSpan = static_cast<i64>(kSpanSegments) * kSegment;  // also plain_output's span
constexpr u32 kHyperKept = 3;                                 // quads of a stream that a thread holds
constexpr u32 kHyperWidth = kHyperKept * 4 * kStreamThreads;  // of a stream at most
static_assert(kHyperSpan == kPlainSpan && kHyperSimds == kSpanSegments && kHyperThreads >= kStreamThreads,
              "orders of summation must be the same");

struct HyperArgs {
  Global<f32> wide;            // [rows][4][width]
  Global<const f32> out;       // [rows][width]: what is injected, or null
  Global<const f32> out_gate;  // [rows][4]
  Global<const f32> norm;      // [4][width]
  Global<const f32> normed;    // [rows][4][width], injected already; null: normalised here
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

DEVICE_FUNCTION f32 hyper_part(const HyperArgs& args, u32 row, u32 stream) {
  if (args.out == nullptr) return 0;
  return injected_part(args.out_gate[row * kHyperStreams + stream], kHyperStreams);
}

/// Puts inputs begin .. end - 1 of a row where the group reads them: injected and normalised, a stream's sum
/// of squares as in norm_streams. `each` has two halves, used in turns.
DEVICE_FUNCTION void hyper_norm_span(const Thread& t, const HyperArgs& args, u32 row, u32 begin, u32 end,
                                     Shared<f32> values, Shared<f32> each) {
  const u32 width = static_cast<u32>(args.width);
  u32 turn = 0;
  NO_UNROLL for (u32 stream = begin / width; stream * width < end; ++stream) {
    const u32 first = stream * width;
    const f32 part = hyper_part(args, row, stream);
    const Global<const f32> wide = args.wide + (row * kHyperStreams * width + first);
    f32x4 v[kHyperKept];
    f32x4 w[kHyperKept];
    f32x4 out[kHyperKept];
    UNROLL for (u32 i = 0; i < kHyperKept; ++i) {
      const u32 at = 4 * (i * kStreamThreads + t.index);
      v[i] = w[i] = out[i] = f32x4{0, 0, 0, 0};
      if (t.index >= kStreamThreads || at >= width) continue;
      v[i] = load4f(wide, at);
      w[i] = load4f(args.norm, first + at);
      if (args.out != nullptr) out[i] = load4f(args.out, row * width + at);
    }
    f32 sum = 0;
    UNROLL for (u32 i = 0; i < kHyperKept; ++i) {
      if (args.out != nullptr) v[i] = quad_fma(out[i], part, v[i]);
      sum = quad_dot(v[i], v[i], sum);
    }
    sum = simd_sum(t, sum);
    if (t.lane == 0 && t.simd < kStreamSimds) each[turn * kStreamSimds + t.simd] = sum;
    barrier(t);
    sum = 0;
    UNROLL for (u32 i = 0; i < kStreamSimds; ++i) sum += each[turn * kStreamSimds + i];
    turn ^= 1U;
    const f32 scale = 1 / sqrt_f32(sum / static_cast<f32>(args.width) + args.eps);
    if (t.index == 0 && t.group_x == 0) args.scale[row * kHyperStreams + stream] = scale;
    UNROLL for (u32 i = 0; i < kHyperKept; ++i) {
      const u32 at = 4 * (i * kStreamThreads + t.index);
      if (t.index >= kStreamThreads || at >= width || first + at < begin || first + at >= end) continue;
      // As norm_streams with no shift.
      const f32x4 x = quad_scale(v[i], scale);
      store4f(
          values, first + at - begin,
          f32x4{x.x * (w[i].x + 0.0F), x.y * (w[i].y + 0.0F), x.z * (w[i].z + 0.0F), x.w * (w[i].w + 0.0F)});
    }
  }
  barrier(t);
}

/// Values of a unit from `count` floats in the group's memory, zeros beyond.
DEVICE_FUNCTION UnitValues unit_of(const Thread& t, Shared<f32> from, u32 first, u32 count) {
  const u32 i = first + unit_place(t);
  UnitValues values;
  UNROLL for (u32 k = 0; k < 4; ++k) {
    values.v[2 * k] = i < count ? static_cast<f32>(from[i + 4 * k]) : 0.0F;
    values.v[2 * k + 1] = i < count ? static_cast<f32>(from[i + 4 * k + 1]) : 0.0F;
  }
  return values;
}

/// The gates' sums over one span: a SIMD group a gate.
DEVICE_FUNCTION void hyper_gates(const Thread& t, const HyperArgs& args, u32 begin, u32 end,
                                 Shared<f32> values, Shared<f32> each) {
  const Weights inject = args.inject;
  const bool gate = t.simd < kHyperStreams;
  const bool kept = gate && inject.format == kFormatBf16;
  PlainSpan span;
  if (kept) span.load(t, inject.data + (t.simd * inject.row_bytes + begin * 2), end - begin);
  wait_for_kernel_before();
  NO_UNROLL for (u32 row = 0; row < args.rows; ++row) {
    f32 sum = 0;
    if (args.normed == nullptr) hyper_norm_span(t, args, row, begin, end, values, each);
    const Global<const f32> normed =
        args.normed + (row * kHyperStreams * static_cast<u32>(args.width) + begin);
    if (kept) {
      if (args.normed == nullptr) {
        span.dot<1>(t, values, 0, end - begin, &sum);
      } else {
        span.dot<1>(t, normed, 0, end - begin, &sum);
      }
    } else if (gate && !(args.normed == nullptr)) {
      NO_UNROLL for (u32 i = t.lane * 8; i < end - begin; i += 256) {
        sum = eight_dot(eight_weights(inject, t.simd, begin + i), load4f(normed, i), load4f(normed, i + 4),
                        sum);
      }
      sum = simd_sum(t, sum);
    } else if (gate) {
      NO_UNROLL for (u32 i = t.lane * 8; i < end - begin; i += 256) {
        sum = eight_dot(eight_weights(inject, t.simd, begin + i), load4f(values, i), load4f(values, i + 4),
                        sum);
      }
      sum = simd_sum(t, sum);
    }
    if (gate && t.lane == 0) {
      args.gates[(t.group_y * args.rows + row) * kHyperStreams + t.simd] = sum;
    }
    barrier(t);
  }
}

/// Groups (tiles of the bottleneck, then one for the gates; spans of the inputs).
template <class Codes>
DEVICE_FUNCTION void hyper_down(const Thread& t, const HyperArgs& args, Shared<f32> memory,
                                Shared<f32> partial, Shared<f32> each) {
  const bool own = args.normed == nullptr;
  const u32 most = own ? kHyperOwn : kHyperBatch;
  const u32 room = own ? kHyperOwnUnits : kHyperUnits;
  const Shared<f32> words = memory;
  const Shared<f32> sides = memory + room * kUnitWords;
  const Shared<f32> values = memory + kHyperOwnUnits * (kUnitWords + kUnitSides);  // of own rows
  const u32 in = kHyperStreams * static_cast<u32>(args.width);
  const u32 begin = t.group_y * static_cast<u32>(kHyperSpan);
  const u32 end = min_of(in, begin + static_cast<u32>(kHyperSpan));
  const u32 outs = static_cast<u32>(args.down.out);
  if (t.group_x * kTileRows >= outs) return hyper_gates(t, args, begin, end, values, each);
  const u32 segments = (end - begin + kSegment - 1) / kSegment;
  TileSegment<Codes, 4> codes;
  codes.load(t, tile_matrix(args.down), t.group_x, t.group_y * kSpanSegments + min_of(t.simd, segments - 1));
  wait_for_kernel_before();
  NO_UNROLL for (u32 row0 = 0; row0 < args.rows; row0 += most) {
    const u32 batch = min_of(most, args.rows - row0);
    if (!own) {
      const StagedRows from{args.normed, nullptr, row0};
      const u32 segment0 = t.group_y * kSpanSegments;
      stage_rows(t, kHyperSimds, from, in, batch, segment0, segments,
                 read_unit(t, from, in, batch, segment0, t.simd, segments * batch), Codes::kUnit, words,
                 sides);
      barrier(t);
    }
    NO_UNROLL for (u32 row = 0; own && row < batch; ++row) {
      hyper_norm_span(t, args, row0 + row, begin, end, values, each);
      if (t.simd < segments) {
        stage_unit(t, unit_of(t, values, t.simd * kSegment, end - begin), Codes::kUnit, words, sides,
                   t.simd * batch + row);
      }
      barrier(t);
    }
    const u32 width = batch * kTileRows;
    if (t.simd < segments) {
      const GroupUnits units = staged_units(t, words, sides, batch);
      put_rows(t, partial + t.simd * width, batch, codes.multiply(t, units, t.simd));
    }
    barrier(t);
    const u32 output = t.group_x * kTileRows + t.index % kTileRows;
    if (t.index < width && output < outs) {
      SpanSum total;
      total.clear();
      add_partials(partial, width, t.index, 0, segments, total);
      const u32 row = row0 + t.index / kTileRows;
      args.low[(t.group_y * args.rows + row) * outs + output] = total.sum();
    }
  }
}

constexpr u32 kHyperUpSegments = 3;  // of the bottleneck at most: a unit for each and row
constexpr u32 kHyperLow = 2560;      // elements of the bottleneck of all rows at most
constexpr u32 kHyperSpans = 4;       // read before any is added

constexpr u32 kHyperTogether = 2;  // elements that a thread reads before it adds any

/// Sums of the spans, [spans][count], of elements e, e + kHyperThreads and so on; nothing from `count` on.
template <u32 kElements>
DEVICE_FUNCTION void hyper_spans(Global<const f32> from, u32 spans, u32 count, u32 e, f32* total) {
  UNROLL for (u32 k = 0; k < kElements; ++k) total[k] = 0;
  NO_UNROLL for (u32 first = 0; first < spans; first += kHyperSpans) {
    f32 part[kElements][kHyperSpans];
    UNROLL for (u32 k = 0; k < kElements; ++k) {
      UNROLL for (u32 s = 0; s < kHyperSpans; ++s) {
        const bool there = first + s < spans && e + k * kHyperThreads < count;
        part[k][s] = there ? static_cast<f32>(from[(first + s) * count + e + k * kHyperThreads]) : 0.0F;
      }
    }
    UNROLL for (u32 k = 0; k < kElements; ++k) {
      UNROLL for (u32 s = 0; s < kHyperSpans; ++s) {
        if (first + s < spans) total[k] += part[k][s];
      }
    }
  }
}

/// Groups: 16 outputs of the mean, a tile in each stream.
template <class Codes>
DEVICE_FUNCTION void hyper_up(const Thread& t, const HyperArgs& args, Shared<f32> words, Shared<f32> sides,
                              Shared<f32> partial, Shared<f32> low) {
  const u32 in = static_cast<u32>(args.up.in);
  const u32 width = static_cast<u32>(args.width);
  const u32 rows = args.rows;
  const u32 segments = (in + kSegment - 1) / kSegment;
  const u32 tasks = segments * kHyperStreams;
  TileSegment<Codes, 1> codes[2];
  UNROLL for (u32 i = 0; i < 2; ++i) {
    const u32 task = min_of(t.simd + i * kHyperSimds, tasks - 1);
    codes[i].load(t, tile_matrix(args.up), task % kHyperStreams * (width / kTileRows) + t.group_x,
                  task / kHyperStreams);
  }
  // What the results are made of is read at once; only they are waited for in the end.
  const bool result = t.index < rows * kTileRows;
  const u32 row = result ? t.index / kTileRows : 0;
  const u32 at = t.group_x * kTileRows + t.index % kTileRows;
  f32 norm[kHyperStreams];
  UNROLL for (u32 s = 0; s < kHyperStreams; ++s) {
    norm[s] = result ? static_cast<f32>(args.norm[s * width + at]) : 0.0F;
  }
  wait_for_kernel_before();
  f32 wide[kHyperStreams];
  f32 gate[kHyperStreams];
  f32 scale[kHyperStreams];
  f32 out = 0;
  UNROLL for (u32 s = 0; s < kHyperStreams; ++s) {
    wide[s] = gate[s] = scale[s] = 0;
    if (!result) continue;
    if (!(args.normed == nullptr)) {
      wide[s] = args.normed[(row * kHyperStreams + s) * width + at];
      continue;
    }
    wide[s] = args.wide[(row * kHyperStreams + s) * width + at];
    scale[s] = args.scale[row * kHyperStreams + s];
    if (args.out != nullptr) gate[s] = args.out_gate[row * kHyperStreams + s];
  }
  if (result && args.out != nullptr) out = args.out[row * width + at];
  const u32 elements = rows * in;
  NO_UNROLL for (u32 e = t.index; e < elements; e += kHyperTogether * kHyperThreads) {
    f32 sum[kHyperTogether];
    hyper_spans<kHyperTogether>(args.low, args.spans, elements, e, sum);
    UNROLL for (u32 k = 0; k < kHyperTogether; ++k) {
      if (e + k * kHyperThreads < elements) low[e + k * kHyperThreads] = silu(sum[k] / args.div);
    }
  }
  if (t.group_x == 0 && args.inject.out > 0 && t.index < rows * kHyperStreams) {
    f32 sum = 0;
    hyper_spans<1>(args.gates, args.spans, rows * kHyperStreams, t.index, &sum);
    args.inject_gate[t.index] = sum;
  }
  barrier(t);
  NO_UNROLL for (u32 unit = t.simd; unit < segments * rows; unit += kHyperSimds) {
    const u32 segment = unit / rows;
    const u32 from = (unit - segment * rows) * in;
    stage_unit(t, unit_of(t, low, from + segment * kSegment, from + in), Codes::kUnit, words, sides, unit);
  }
  barrier(t);
  const u32 stride = rows * kTileRows;
  UNROLL for (u32 i = 0; i < 2; ++i) {
    const u32 task = t.simd + i * kHyperSimds;
    if (task >= tasks) continue;
    const GroupUnits units = staged_units(t, words, sides, rows);
    put_rows(t, partial + task * stride, rows, codes[i].multiply(t, units, task / kHyperStreams));
  }
  barrier(t);
  if (!result) return;
  f32 sum = 0;
  UNROLL for (u32 s = 0; s < kHyperStreams; ++s) {
    SpanSum u;
    u.clear();
    for (u32 k = 0; k < segments; ++k) u.add(k, partial[(k * kHyperStreams + s) * stride + t.index]);
    f32 v = wide[s];
    if (args.out != nullptr) {
      v = fma_f32(out, injected_part(gate[s], kHyperStreams), v);
      args.wide[(row * kHyperStreams + s) * width + at] = v;
    }
    const f32 normed = args.normed == nullptr ? v * scale[s] * (norm[s] + 0.0F) : v;
    sum = fma_f32(sigmoid(u.sum()), normed, sum);
  }
  args.mixed[row * width + at] = sum / static_cast<f32>(kHyperStreams);
}

constexpr u32 kHyperMemory = kHyperUnits * (kUnitWords + kUnitSides);
static_assert(kHyperMemory >= kHyperOwnUnits * (kUnitWords + kUnitSides) + kSpanSegments * kSegment,
              "a group's own rows lie beside their units");
#define SLUICE_HYPER(name, Codes)                                 \
  KERNEL(hyper_down_##name, HyperArgs, kHyperThreads) {           \
    KERNEL_THREAD_EARLY(t);                                       \
    SHARED(f32, memory, kHyperMemory);                            \
    SHARED(f32, partial, kSpanSegments* kHyperBatch* kTileRows);  \
    SHARED(f32, each, 2 * kStreamSimds);                          \
    hyper_down<Codes>(t, args, memory, partial, each);            \
  }                                                               \
  KERNEL_RESIDENT(hyper_up_##name, HyperArgs, kHyperThreads, 2) { \
    KERNEL_THREAD_EARLY(t);                                       \
    SHARED(f32, words, kHyperUpSegments* kHyperRows* kUnitWords); \
    SHARED(f32, sides, kHyperUpSegments* kHyperRows* kUnitSides); \
    SHARED(f32, partial, kHyperUpSegments* kHyperStreams* kTile); \
    SHARED(f32, low, kHyperLow);                                  \
    hyper_up<Codes>(t, args, words, sides, partial, low);         \
  }
SLUICE_HYPER(q4, CodesQ4)
SLUICE_HYPER(q8, CodesQ8)
#undef SLUICE_HYPER

}  // namespace sluice::kernels

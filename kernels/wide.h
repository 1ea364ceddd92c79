// The wide residual and the gate of the n-gram embedding (model.md 3.3, 3.10).
//
// A stream is `width` elements; stream s of row r is number r * streams + s. Sums over a stream are taken by
// one group: a thread's quads in ascending order, then a butterfly in each SIMD group, then the SIMD groups
// in order.
#pragma once

#include "quads.h"

#define SLUICE_WIDE_KERNELS(X) \
  X(replicate_streams)         \
  X(norm_streams)              \
  X(halve_streams)             \
  X(inject_streams)            \
  X(mix_streams)               \
  X(fold_streams)              \
  X(gate_streams)

namespace sluice::kernels {

/// Of a group that sums a stream: the released model's 640 quads are two or three a thread. hyper.h sums by
/// as many threads, so that it has the same bits.
constexpr u32 kStreamThreads = 256;
constexpr u32 kStreamSimds = kStreamThreads / 32;
constexpr u32 kStreamKept = 3;  // quads that a thread holds between summing and writing
/// Of a group that only maps elements.
constexpr u32 kWideThreads = 128;

struct ReplicateStreamsArgs {
  Global<const f32> e;  // [rows][width]
  Global<f32> wide;     // [rows][streams][width]
  i64 streams, width;
  u32 aligned;
};
/// Groups (rows, parts of a row).
KERNEL(replicate_streams, ReplicateStreamsArgs, kWideThreads) {
  KERNEL_THREAD(t);
  const i64 row = t.group_x;
  const i64 at = 4 * (static_cast<i64>(t.group_y) * kWideThreads + t.index);
  if (at >= args.width) return;
  const bool aligned = args.aligned != 0;
  const f32x4 v = quad_of(args.e + row * args.width, at, args.width, aligned);
  for (i64 s = 0; s < args.streams; ++s) {
    set_quad(args.wide + (row * args.streams + s) * args.width, at, args.width, aligned, v);
  }
}

/// 2 sigmoid(gate / G): how much of a block's output a stream takes.
DEVICE_FUNCTION f32 injected_part(f32 gate, i64 streams) {
  return 2 * sigmoid(gate / static_cast<f32>(streams));
}

struct NormStreamsArgs {
  Global<const f32> x;  // [rows][streams][width]
  Global<f32> wide;     // the same as x where `out` is added to it first, else null
  Global<const f32> out, gate;
  Global<const f32> w;  // [streams][width]
  Global<f32> y;        // may be x
  i64 streams, width;
  f32 shift, eps;
  u32 aligned;
};
/// A quad of the stream, with what is injected into it written back.
DEVICE_FUNCTION f32x4 injected_quad(const NormStreamsArgs& args, i64 stream, i64 at, f32 part) {
  const bool aligned = args.aligned != 0;
  const i64 first = stream * args.width;
  f32x4 v = quad_of(args.x + first, at, args.width, aligned);
  if (args.wide == nullptr) return v;
  const i64 row = stream / args.streams;
  v = quad_fma(quad_of(args.out + row * args.width, at, args.width, aligned), part, v);
  set_quad(args.wide + first, at, args.width, aligned, v);
  return v;
}
DEVICE_FUNCTION f32x4 norm_weight(const NormStreamsArgs& args, i64 stream, i64 at) {
  return quad_of(args.w + stream % args.streams * args.width, at, args.width, args.aligned != 0);
}
DEVICE_FUNCTION void normed_quad(const NormStreamsArgs& args, i64 stream, i64 at, f32 scale, f32x4 w,
                                 f32x4 v) {
  v = quad_scale(v, scale);
  v = f32x4{v.x * (w.x + args.shift), v.y * (w.y + args.shift), v.z * (w.z + args.shift),
            v.w * (w.w + args.shift)};
  set_quad(args.y + stream * args.width, at, args.width, args.aligned != 0, v);
}
/// A group a stream. What is kept is read with its weights before the sum, which all wait for.
KERNEL(norm_streams, NormStreamsArgs, kStreamThreads) {
  KERNEL_THREAD(t);
  SHARED(f32, each, kStreamSimds);
  const i64 stream = t.group_x;
  f32 part = 0;
  if (args.wide != nullptr) part = injected_part(args.gate[stream], args.streams);
  f32x4 kept[kStreamKept];
  f32x4 weight[kStreamKept];
  f32 sum = 0;
  UNROLL for (u32 i = 0; i < kStreamKept; ++i) {
    const i64 at = 4 * (static_cast<i64>(i) * kStreamThreads + t.index);
    kept[i] = f32x4{0, 0, 0, 0};
    weight[i] = kept[i];
    if (at < args.width) {
      kept[i] = injected_quad(args, stream, at, part);
      weight[i] = norm_weight(args, stream, at);
    }
    sum = quad_dot(kept[i], kept[i], sum);
  }
  const i64 rest = 4 * (static_cast<i64>(kStreamKept) * kStreamThreads + t.index);
  for (i64 at = rest; at < args.width; at += 4 * kStreamThreads) {
    const f32x4 v = injected_quad(args, stream, at, part);
    sum = quad_dot(v, v, sum);
  }
  sum = group_sum(t, sum, each, kStreamSimds);
  const f32 scale = 1 / sqrt_f32(sum / static_cast<f32>(args.width) + args.eps);
  UNROLL for (u32 i = 0; i < kStreamKept; ++i) {
    const i64 at = 4 * (static_cast<i64>(i) * kStreamThreads + t.index);
    if (at < args.width) normed_quad(args, stream, at, scale, weight[i], kept[i]);
  }
  // A thread reads again what it has read, or written, itself.
  for (i64 at = rest; at < args.width; at += 4 * kStreamThreads) {
    const f32x4 v = quad_of(args.x + stream * args.width, at, args.width, args.aligned != 0);
    normed_quad(args, stream, at, scale, norm_weight(args, stream, at), v);
  }
}

struct HalveStreamsArgs {
  Global<const f32> y;    // [count]
  Global<u16> even, odd;  // half [count / 2]
  Global<f32> sums;       // [count / 32]
  i64 count;              // a multiple of 32
};
/// Rounds to half, even and odd elements apart, and sums over 32 elements: a thread a quad.
KERNEL(halve_streams, HalveStreamsArgs, kWideThreads) {
  KERNEL_THREAD(t);
  const i64 at = 4 * (static_cast<i64>(t.group_x) * kWideThreads + t.index);
  f32x4 v{0, 0, 0, 0};
  if (at < args.count) {
    v = load4f(args.y, at);
    args.even[at / 2] = half_of_f32(v.x);
    args.odd[at / 2] = half_of_f32(v.y);
    args.even[at / 2 + 1] = half_of_f32(v.z);
    args.odd[at / 2 + 1] = half_of_f32(v.w);
  }
  f32 sum = (v.x + v.y) + (v.z + v.w);
  for (u32 mask = 4; mask > 0; mask /= 2) sum += simd_shuffle_xor(t, sum, mask);
  if (t.lane % 8 == 0 && at < args.count) args.sums[at / 32] = sum;
}

struct InjectStreamsArgs {
  Global<const f32> out;   // [rows][width]
  Global<const f32> gate;  // [rows][streams]
  Global<f32> wide;        // [rows][streams][width]
  i64 streams, width;
  u32 aligned;
};
/// Groups (rows, parts of a row).
KERNEL(inject_streams, InjectStreamsArgs, kWideThreads) {
  KERNEL_THREAD(t);
  const i64 row = t.group_x;
  const i64 at = 4 * (static_cast<i64>(t.group_y) * kWideThreads + t.index);
  if (at >= args.width) return;
  const bool aligned = args.aligned != 0;
  const f32x4 out = quad_of(args.out + row * args.width, at, args.width, aligned);
  for (i64 s = 0; s < args.streams; ++s) {
    const i64 stream = row * args.streams + s;
    const Global<f32> to = args.wide + stream * args.width;
    const f32 part = injected_part(args.gate[stream], args.streams);
    set_quad(to, at, args.width, aligned, quad_fma(out, part, quad_of(to, at, args.width, aligned)));
  }
}

struct MixStreamsArgs {
  Global<const f32> u, normed;  // [rows][streams][width]
  Global<f32> mixed;            // [rows][width]
  i64 streams, width;
  u32 aligned;
};
/// Groups (rows, parts of a row). The streams in ascending order.
KERNEL(mix_streams, MixStreamsArgs, kWideThreads) {
  KERNEL_THREAD(t);
  const i64 row = t.group_x;
  const i64 at = 4 * (static_cast<i64>(t.group_y) * kWideThreads + t.index);
  if (at >= args.width) return;
  const bool aligned = args.aligned != 0;
  f32x4 sum{0, 0, 0, 0};
  for (i64 s = 0; s < args.streams; ++s) {
    const i64 first = (row * args.streams + s) * args.width;
    const f32x4 part = quad_sigmoid(quad_of(args.u + first, at, args.width, aligned));
    const f32x4 x = quad_of(args.normed + first, at, args.width, aligned);
    sum = f32x4{fma_f32(part.x, x.x, sum.x), fma_f32(part.y, x.y, sum.y), fma_f32(part.z, x.z, sum.z),
                fma_f32(part.w, x.w, sum.w)};
  }
  const f32 count = static_cast<f32>(args.streams);
  const f32x4 mean{sum.x / count, sum.y / count, sum.z / count, sum.w / count};
  set_quad(args.mixed + row * args.width, at, args.width, aligned, mean);
}

struct FoldStreamsArgs {
  Global<const f32> fe;  // [rows][width]
  Global<const f32> fh;  // [rows][streams][width]
  Global<f32> wide;      // [rows][streams][width]
  i64 streams, width;
  u32 aligned;
};
/// Groups (rows, parts of a row).
KERNEL(fold_streams, FoldStreamsArgs, kWideThreads) {
  KERNEL_THREAD(t);
  const i64 row = t.group_x;
  const i64 at = 4 * (static_cast<i64>(t.group_y) * kWideThreads + t.index);
  if (at >= args.width) return;
  const bool aligned = args.aligned != 0;
  const f32x4 e = quad_of(args.fe + row * args.width, at, args.width, aligned);
  for (i64 s = 0; s < args.streams; ++s) {
    const i64 first = (row * args.streams + s) * args.width;
    const f32x4 h = quad_of(args.fh + first, at, args.width, aligned);
    set_quad(args.wide + first, at, args.width, aligned, quad_fma(h, 1, e));
  }
}

struct GateStreamsArgs {
  Global<const f32> key, query;  // [rows][streams][width]
  Global<const f32> value;       // [rows][width]
  Global<f32> gated;             // may be key or query
  i64 streams, width;
  u32 aligned;
};
/// A group a stream; it has read all of key and query before it writes.
KERNEL(gate_streams, GateStreamsArgs, kStreamThreads) {
  KERNEL_THREAD(t);
  SHARED(f32, each, kStreamSimds);
  const i64 stream = t.group_x;
  const i64 first = stream * args.width;
  const bool aligned = args.aligned != 0;
  const Global<const f32> value = args.value + stream / args.streams * args.width;
  f32x4 kept[kStreamKept];  // of the value: read before the sum, which all wait for
  UNROLL for (u32 i = 0; i < kStreamKept; ++i) {
    const i64 at = 4 * (static_cast<i64>(i) * kStreamThreads + t.index);
    kept[i] = f32x4{0, 0, 0, 0};
    if (at < args.width) kept[i] = quad_of(value, at, args.width, aligned);
  }
  f32 sum = 0;
  for (i64 at = 4 * t.index; at < args.width; at += 4 * kStreamThreads) {
    sum = quad_dot(quad_of(args.key + first, at, args.width, aligned),
                   quad_of(args.query + first, at, args.width, aligned), sum);
  }
  sum = group_sum(t, sum, each, kStreamSimds);
  const f32 d = sum / sqrt_f32(static_cast<f32>(args.width));
  const f32 sign = d > 0 ? 1.0F : d < 0 ? -1.0F : d;  // 0 stays 0 and NaN stays NaN
  const f32 factor = sigmoid(sign * sqrt_f32(max_f32(abs_f32(d), 1e-6F)));
  const Global<f32> gated = args.gated + first;
  UNROLL for (u32 i = 0; i < kStreamKept; ++i) {
    const i64 at = 4 * (static_cast<i64>(i) * kStreamThreads + t.index);
    if (at < args.width) set_quad(gated, at, args.width, aligned, quad_scale(kept[i], factor));
  }
  const i64 rest = 4 * (static_cast<i64>(kStreamKept) * kStreamThreads + t.index);
  for (i64 at = rest; at < args.width; at += 4 * kStreamThreads) {
    set_quad(gated, at, args.width, aligned, quad_scale(quad_of(value, at, args.width, aligned), factor));
  }
}

}  // namespace sluice::kernels

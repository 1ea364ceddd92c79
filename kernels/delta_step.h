// A decode step's few rows of a gated DeltaNet between its projections, in one launch: gates, convolution,
// recurrence and the norm of each head (model.md 3.8). The bits are those of conv.h and delta.h.
#pragma once

#include "conv.h"
#include "delta.h"

#define SLUICE_DELTA_STEP_KERNELS(X) X(delta_step_whole)

namespace sluice::kernels {

constexpr u32 kDeltaStepThreads = 512;
constexpr u32 kDeltaStepSimds = kDeltaStepThreads / 32;  // eight columns of the state each
constexpr u32 kDeltaStepRows = 8;
constexpr u32 kDeltaStepDim = 128;  // of keys and of values
constexpr u32 kDeltaStepParts = 3;  // of a row of a head: query, key, value
constexpr u32 kDeltaStepTask = kDeltaStepRows * kDeltaStepDim;
static_assert(kDeltaStepSimds * 8 == kDeltaStepDim && kScanKeys == kDeltaStepDim, "a head is a group's");

struct DeltaStepArgs {
  Global<const f32> qkv;              // [rows][channels]: before the convolution
  Global<const f32> conv;             // [channels][kConvTaps]
  Global<f32> ring;                   // [span][channels], kConvTaps - 1 + rows positions at least
  Global<const f32> a, b;             // [rows][value_heads]
  Global<const f32> a_log, dt_bias;   // [value_heads]
  Global<const f32> z;                // [rows][value_heads][kDeltaStepDim]
  Global<const f32> norm;             // [kDeltaStepDim]
  Global<const f32> state_in;         // [value_heads][kDeltaStepDim][kDeltaStepDim]
  Global<f32> state_out;              // may be state_in
  Global<f32> kept_qkv;               // [rows][channels]: after the convolution
  Global<f32> kept_decay, kept_beta;  // [rows][value_heads]
  Global<f32> out;                    // [rows][value_heads][kDeltaStepDim]
  i32 base, span, key_heads, value_heads;
  u32 rows;
  u32 silu;   // the gate: sigmoid if 0
  u32 early;  // the kernel before has written neither the state nor the ring
  f32 query_scale, eps;
};

/// Four neighbouring channels of one row, a lane's: their weights, and what the ring has of them.
struct DeltaStepConv {
  f32x4 weight[kConvTaps];  // of each channel
  f32x4 tap[kConvTaps];
  i32 row, channel;
  /// Query, key or value of a row.
  DEVICE_FUNCTION void read(const Thread& t, const DeltaStepArgs& args, u32 task, u32 key_head) {
    const u32 part = task % kDeltaStepParts;
    row = static_cast<i32>(task / kDeltaStepParts);
    const u32 keys = static_cast<u32>(args.key_heads) * kDeltaStepDim;
    channel = static_cast<i32>(part == 2 ? 2 * keys + t.group_x * kDeltaStepDim
                                         : part * keys + key_head * kDeltaStepDim) +
              static_cast<i32>(4 * t.lane);
    UNROLL for (u32 c = 0; c < 4; ++c) weight[c] = load4f(args.conv, (channel + static_cast<i32>(c)) * 4);
    UNROLL for (u32 i = 0; i + 1 < kConvTaps; ++i) {
      const i32 position = args.base + row - 3 + static_cast<i32>(i);
      tap[i] = f32x4{0, 0, 0, 0};
      if (position < 0 || position >= args.base) continue;
      const u32 place = static_cast<u32>(position) % static_cast<u32>(args.span);
      tap[i] = load4f(args.ring, static_cast<i64>(place) * channels(args) + channel);
    }
  }
  static DEVICE_FUNCTION i32 channels(const DeltaStepArgs& args) {
    return (2 * args.key_heads + args.value_heads) * static_cast<i32>(kDeltaStepDim);
  }
  static DEVICE_FUNCTION f32x4 add(f32x4 x, f32 w0, f32 w1, f32 w2, f32 w3, f32x4 sum) {
    return f32x4{fma_f32(w0, x.x, sum.x), fma_f32(w1, x.y, sum.y), fma_f32(w2, x.z, sum.z),
                 fma_f32(w3, x.w, sum.w)};
  }
  /// The convolution, once the row and those before it are there. `keeps`: this group's are those kept.
  DEVICE_FUNCTION f32x4 finish(const DeltaStepArgs& args, bool keeps) {
    UNROLL for (u32 i = 0; i < kConvTaps; ++i) {
      const i32 before = row - 3 + static_cast<i32>(i);
      if (before >= 0) tap[i] = load4f(args.qkv, static_cast<i64>(before) * channels(args) + channel);
    }
    // From the oldest position on; those before the start are left out.
    const i32 position = args.base + row;
    f32x4 sum{0, 0, 0, 0};
    if (position >= 3) sum = add(tap[0], weight[0].x, weight[1].x, weight[2].x, weight[3].x, sum);
    if (position >= 2) sum = add(tap[1], weight[0].y, weight[1].y, weight[2].y, weight[3].y, sum);
    if (position >= 1) sum = add(tap[2], weight[0].z, weight[1].z, weight[2].z, weight[3].z, sum);
    sum = quad_silu(add(tap[3], weight[0].w, weight[1].w, weight[2].w, weight[3].w, sum));
    if (keeps) {
      const u32 place = static_cast<u32>(position) % static_cast<u32>(args.span);
      store4f(args.ring, static_cast<i64>(place) * channels(args) + channel, tap[3]);
      store4f(args.kept_qkv, static_cast<i64>(row) * channels(args) + channel, sum);
    }
    return sum;
  }
};

/// Groups: value heads. Weights, state and ring are read before the kernel before has ended.
KERNEL(delta_step_whole, DeltaStepArgs, kDeltaStepThreads) {
  KERNEL_THREAD_EARLY(t);
  SHARED(f32, qkv, kDeltaStepParts * kDeltaStepTask);  // [part][row][kDeltaStepDim]
  SHARED(f32, y, kDeltaStepTask);
  SHARED(f32, factors, kDeltaStepRows * kScanFactors);
  if (args.early == 0) wait_for_kernel_before();
  const u32 head = t.group_x;
  const u32 shared_by = static_cast<u32>(args.value_heads / args.key_heads);
  const u32 key_head = head / shared_by;
  const bool keeps_keys = head == key_head * shared_by;
  const u32 tasks = args.rows * kDeltaStepParts;
  const bool has_row = t.simd < args.rows;

  const u32 s = t.lane % 16;
  const u32 own = 8 * t.simd + t.lane / 16 * 4;  // the first of the lane's columns
  const i64 first = static_cast<i64>(head) * (kDeltaStepDim * kDeltaStepDim) + 4 * s * kDeltaStepDim + own;
  f32x4 state[8];
  UNROLL for (u32 i = 0; i < 8; ++i) {
    state[i] = load4f(args.state_in, first + (64 * (i / 4) + i % 4) * kDeltaStepDim);
  }
  DeltaStepConv conv;
  if (t.simd < tasks) conv.read(t, args, t.simd, key_head);
  const f32 a_log = args.a_log[head];
  const f32 dt_bias = args.dt_bias[head];
  const f32x4 weight = load4f(args.norm, 4 * t.lane);
  wait_for_kernel_before();

  f32 a = 0;
  f32 b = 0;
  f32x4 logit{0, 0, 0, 0};
  const u32 place = t.simd * static_cast<u32>(args.value_heads) + head;
  if (has_row) {
    a = args.a[place];
    b = args.b[place];
    logit = load4f(args.z, place * kDeltaStepDim + 4 * t.lane);
  }
  NO_UNROLL for (u32 task = t.simd; task < tasks; task += kDeltaStepSimds) {
    if (task != t.simd) conv.read(t, args, task, key_head);
    const u32 part = task % kDeltaStepParts;
    const f32x4 v = conv.finish(args, part == 2 || keeps_keys);
    store4f(qkv, part * kDeltaStepTask + task / kDeltaStepParts * kDeltaStepDim + 4 * t.lane, v);
  }
  barrier(t);
  if (has_row) {
    const u32 row = t.simd * kDeltaStepDim + 4 * t.lane;
    const f32 decay = delta_decay(a, a_log, dt_bias);
    const f32 beta = sigmoid(b);
    scan_factors(t, load4f(qkv, row), load4f(qkv, kDeltaStepTask + row), args.query_scale, decay, beta,
                 factors + t.simd * kScanFactors);
    if (t.lane == 0) {
      args.kept_decay[place] = decay;
      args.kept_beta[place] = beta;
    }
  }
  barrier(t);
  NO_UNROLL for (u32 row = 0; row < args.rows; ++row) {
    const u32 at = row * kDeltaStepDim;
    const f32 answer =
        scan_token<2>(t, qkv + at, qkv + (kDeltaStepTask + at), qkv + (2 * kDeltaStepTask + at + own),
                      factors + row * kScanFactors, state);
    if (has_answer(s)) y[at + own + (s & 7) / 2] = answer;
  }
  UNROLL for (u32 i = 0; i < 8; ++i) {
    store4f(args.state_out, first + (64 * (i / 4) + i % 4) * kDeltaStepDim, state[i]);
  }
  barrier(t);
  if (!has_row) return;
  const f32x4 kept = load4f(y, t.simd * kDeltaStepDim + 4 * t.lane);
  const f32 mean = simd_sum(t, quad_dot(kept, kept, 0)) / static_cast<f32>(kDeltaStepDim);
  store4f(args.out, place * kDeltaStepDim + 4 * t.lane,
          delta_normed(kept, 1 / sqrt_f32(mean + args.eps), weight, logit, args.silu != 0));
}

}  // namespace sluice::kernels

// Gated DeltaNet: the recurrence and what surrounds it (model.md 3.8).
//
// The recurrence takes one token after the other, so that a state is the same bits however rows are cut into
// calls. What makes it fast is that columns of the state do not meet: a group holds 32 of them for the whole
// scan, in registers.
#pragma once

#include "quads.h"

#define SLUICE_DELTA_KERNELS(X) \
  X(delta_gate_rows)            \
  X(delta_scan_whole)           \
  X(delta_scan_short)           \
  X(delta_scan_any)             \
  X(delta_norm_heads)

namespace sluice::kernels {

constexpr u32 kDeltaThreads = 128;

struct DeltaGateRowsArgs {
  Global<const f32> a, b;            // [rows][heads]
  Global<const f32> a_log, dt_bias;  // [heads]
  Global<f32> decay, beta;           // [rows][heads]
  i64 heads, count;
};
DEVICE_FUNCTION f32 delta_decay(f32 a, f32 a_log, f32 dt_bias) {
  return exp_f32(-exp_f32(a_log) * softplus(a + dt_bias));
}
KERNEL(delta_gate_rows, DeltaGateRowsArgs, kDeltaThreads) {
  KERNEL_THREAD(t);
  const i64 i = static_cast<i64>(t.group_x) * kDeltaThreads + t.index;
  if (i >= args.count) return;
  const i64 head = i % args.heads;
  args.decay[i] = delta_decay(args.a[i], args.a_log[head], args.dt_bias[head]);
  args.beta[i] = sigmoid(args.b[i]);
}

struct DeltaNormHeadsArgs {
  Global<const f32> y, z;  // [count][dim]
  Global<const f32> w;     // [dim]
  Global<f32> out;         // [count][dim]
  i64 count, dim;
  f32 eps;
  u32 silu;  // the gate: sigmoid if 0
  u32 aligned;
};
/// Four of a head's results, with what makes their root mean square 1.
DEVICE_FUNCTION f32x4 delta_normed(f32x4 y, f32 scale, f32x4 weight, f32x4 logit, bool silu) {
  const f32x4 gate = silu ? quad_silu(logit) : quad_sigmoid(logit);
  return quad_multiply(quad_multiply(quad_scale(y, scale), weight), gate);
}
/// A SIMD group a head: a lane's quads in order, then a butterfly.
KERNEL(delta_norm_heads, DeltaNormHeadsArgs, kDeltaThreads) {
  KERNEL_THREAD(t);
  const i64 head = static_cast<i64>(t.group_x) * (kDeltaThreads / 32) + t.simd;
  if (head >= args.count) return;
  const bool aligned = args.aligned != 0;
  const Global<const f32> y = args.y + head * args.dim;
  const Global<const f32> z = args.z + head * args.dim;
  // The first quads are kept, and read before the sum that all lanes wait for.
  const i64 own = 4 * t.lane;
  f32x4 kept{0, 0, 0, 0};
  f32x4 logit = kept;
  f32x4 weight = kept;
  if (own < args.dim) {
    kept = quad_of(y, own, args.dim, aligned);
    logit = quad_of(z, own, args.dim, aligned);
    weight = quad_of(args.w, own, args.dim, aligned);
  }
  f32 sum = quad_dot(kept, kept, 0);
  for (i64 at = own + 128; at < args.dim; at += 128) {
    const f32x4 v = quad_of(y, at, args.dim, aligned);
    sum = quad_dot(v, v, sum);
  }
  const f32 scale = 1 / sqrt_f32(simd_sum(t, sum) / static_cast<f32>(args.dim) + args.eps);
  for (i64 at = own; at < args.dim; at += 128) {
    if (at != own) {
      kept = quad_of(y, at, args.dim, aligned);
      logit = quad_of(z, at, args.dim, aligned);
      weight = quad_of(args.w, at, args.dim, aligned);
    }
    set_quad(args.out + head * args.dim, at, args.dim, aligned,
             delta_normed(kept, scale, weight, logit, args.silu != 0));
  }
}

// --- the scan ---

constexpr u32 kScanTokens = 8;    // staged at a time
constexpr u32 kScanColumns = 32;  // of a group: 8 a SIMD group
constexpr u32 kScanKeys = 128;    // room for a token's key or query
constexpr u32 kScanSimds = kDeltaThreads / 32;
constexpr u32 kScanTurns = kScanTokens / kScanSimds;  // tokens that one SIMD group stages
constexpr u32 kScanFactors = 8;                       // room for a token's factors
constexpr f32 kUnitEps = 1e-6F;                       // added to the sum of squares, inside the root

struct DeltaScanArgs {
  Global<const f32> qkv;          // [rows][2 key_heads key_dim + value_heads value_dim]
  Global<const f32> decay, beta;  // [rows][value_heads]
  Global<const f32> state_in;     // [value_heads][key_dim][value_dim]
  Global<f32> state_out;          // may be state_in
  Global<f32> y;                  // [rows][value_heads][value_dim] or null
  i64 rows;
  i32 key_heads, value_heads, key_dim, value_dim;
  f32 query_scale;
  u32 aligned;
};

/// What a lane reads of a token that its SIMD group stages.
struct ScanToken {
  f32x4 q, k;
  f32 v, decay, beta;
};

template <bool kWhole>
DEVICE_FUNCTION ScanToken scan_read(const Thread& t, const DeltaScanArgs& args, i64 row, u32 head,
                                    i64 key_head, u32 column) {
  ScanToken token{f32x4{0, 0, 0, 0}, f32x4{0, 0, 0, 0}, 0, 0, 0};
  if (row >= args.rows) return token;
  const bool aligned = kWhole || args.aligned != 0;
  const i64 keys = static_cast<i64>(args.key_heads) * args.key_dim;
  const i64 values = static_cast<i64>(args.value_heads) * args.value_dim;
  const Global<const f32> q = args.qkv + row * (2 * keys + values);
  const i64 at = 4 * t.lane;
  if (kWhole || at < args.key_dim) {
    token.q = quad_of(q + key_head * args.key_dim, at, args.key_dim, aligned);
    token.k = quad_of(q + (keys + key_head * args.key_dim), at, args.key_dim, aligned);
  }
  const i64 c = static_cast<i64>(column) + t.lane;
  if (kWhole || c < args.value_dim) token.v = q[2 * keys + static_cast<i64>(head) * args.value_dim + c];
  token.decay = args.decay[row * args.value_heads + head];
  token.beta = args.beta[row * args.value_heads + head];
  return token;
}

/// What a token's state is changed and asked with, from a lane's quads of its query and key.
DEVICE_FUNCTION void scan_factors(const Thread& t, f32x4 q, f32x4 k, f32 query_scale, f32 decay, f32 beta,
                                  Shared<f32> factors) {
  const f32 unit_q = query_scale / sqrt_f32(simd_sum(t, quad_dot(q, q, 0)) + kUnitEps);
  const f32 unit_k = 1 / sqrt_f32(simd_sum(t, quad_dot(k, k, 0)) + kUnitEps);
  const f32 product = simd_sum(t, quad_dot(q, k, 0));
  if (t.lane != 0) return;
  store4f(factors, 0, f32x4{decay, beta * unit_k, decay * unit_k, decay * unit_q});
  factors[4] = product * unit_q;
}
/// Puts a token where every SIMD group sees it. q and k stay as they are read: what makes them unit vectors
/// is in the factors.
DEVICE_FUNCTION void scan_stage(const Thread& t, const DeltaScanArgs& args, ScanToken token, Shared<f32> q,
                                Shared<f32> k, Shared<f32> v, Shared<f32> factors) {
  store4f(q, 4 * t.lane, token.q);
  store4f(k, 4 * t.lane, token.k);
  v[t.lane] = token.v;
  scan_factors(t, token.q, token.k, args.query_scale, token.decay, token.beta, factors);
}

/// Half of the lanes keep `low` and give away `high`, the others the other way round: each ends with the sum
/// of what two lanes had of what it keeps.
DEVICE_FUNCTION f32 halve_sum(const Thread& t, bool upper, f32 low, f32 high, u32 mask) {
  const f32 kept = upper ? high : low;
  return kept + simd_shuffle_xor(t, upper ? low : high, mask);
}

DEVICE_FUNCTION bool has_answer(u32 s) {
  return (s & 9) == 8;
}
/// Lane 16 g + s of a SIMD group holds columns 4 g .. 4 g + 3 of its eight, and of these keys 64 step + 4 s
/// .. + 3. For each token, with the state S as it was and q, k unit vectors:
///   d = beta (v - decay S^T k);  y = decay S^T q + (k . q) d;  S = decay S + k d^T
/// so that both products of S are sums over the same state, taken together: a lane's keys in order, then a
/// butterfly over its 16 lanes.
/// `v`: the values of the lane's four columns. The lanes of has_answer get y of number (s & 7) / 2 of them.
template <u32 kSteps>
DEVICE_FUNCTION f32 scan_token(const Thread& t, Shared<f32> q, Shared<f32> k, Shared<f32> v,
                               Shared<f32> factors, f32x4* state) {
  const u32 s = t.lane % 16;
  const u32 g = t.lane / 16;
  const f32x4 factor = load4f(factors, 0);
  const f32 product = factors[4];
  f32x4 key[kSteps];
  f32x4 sk{0, 0, 0, 0};
  f32x4 sq{0, 0, 0, 0};
  UNROLL for (u32 i = 0; i < kSteps; ++i) {
    key[i] = load4f(k, 64 * i + 4 * s);
    const f32x4 query = load4f(q, 64 * i + 4 * s);
    sk = quad_fma(state[4 * i], key[i].x, sk);
    sq = quad_fma(state[4 * i], query.x, sq);
    sk = quad_fma(state[4 * i + 1], key[i].y, sk);
    sq = quad_fma(state[4 * i + 1], query.y, sq);
    sk = quad_fma(state[4 * i + 2], key[i].z, sk);
    sq = quad_fma(state[4 * i + 2], query.z, sq);
    sk = quad_fma(state[4 * i + 3], key[i].w, sk);
    sq = quad_fma(state[4 * i + 3], query.w, sq);
  }
  // Eight sums over 16 lanes: lanes s and s ^ 1 end with one of them, S^T k where s < 8 and S^T q where
  // not, of column (s & 4) / 2 + (s & 2) / 2.
  const bool asks = (s & 8) != 0;
  const f32 x0 = halve_sum(t, asks, sk.x, sq.x, 8);
  const f32 x1 = halve_sum(t, asks, sk.y, sq.y, 8);
  const f32 x2 = halve_sum(t, asks, sk.z, sq.z, 8);
  const f32 x3 = halve_sum(t, asks, sk.w, sq.w, 8);
  const f32 y0 = halve_sum(t, (s & 4) != 0, x0, x2, 4);
  const f32 y1 = halve_sum(t, (s & 4) != 0, x1, x3, 4);
  f32 sum = halve_sum(t, (s & 2) != 0, y0, y1, 2);
  sum += simd_shuffle_xor(t, sum, 1);
  const u32 c = (s & 7) / 2;
  const f32 value = v[c];
  // Of lanes s < 8: d, times what makes k a unit vector.
  const f32 d = factor.y * fma_f32(-factor.z, sum, value);
  const f32 d_other = simd_shuffle_xor(t, d, 8);
  const f32 d0 = simd_shuffle(t, d, 16 * g);
  const f32 d1 = simd_shuffle(t, d, 16 * g + 2);
  const f32 d2 = simd_shuffle(t, d, 16 * g + 4);
  const f32 d3 = simd_shuffle(t, d, 16 * g + 6);
  UNROLL for (u32 i = 0; i < 4 * kSteps; ++i) {
    const f32x4 four = key[i / 4];
    const f32 part = i % 4 == 0 ? four.x : i % 4 == 1 ? four.y : i % 4 == 2 ? four.z : four.w;
    state[i] = f32x4{fma_f32(part, d0, state[i].x * factor.x), fma_f32(part, d1, state[i].y * factor.x),
                     fma_f32(part, d2, state[i].z * factor.x), fma_f32(part, d3, state[i].w * factor.x)};
  }
  return fma_f32(product, d_other, factor.w * sum);
}

/// All rows of a head's columns of the group, as scan_token lays them out.
/// kWhole: 64 kSteps keys (128), a multiple of kScanColumns columns, everything aligned.
template <u32 kSteps, bool kWhole>
DEVICE_FUNCTION void scan_head(const Thread& t, const DeltaScanArgs& args, Shared<f32> q, Shared<f32> k,
                               Shared<f32> v, Shared<f32> factors) {
  const u32 head = t.group_y;
  const u32 column = t.group_x * kScanColumns;
  const u32 s = t.lane % 16;
  const u32 g = t.lane / 16;
  const i64 own = static_cast<i64>(column) + 8 * t.simd + 4 * g;  // the first of the lane's columns
  const i64 columns = args.value_dim;
  const bool aligned = kWhole || args.aligned != 0;
  const i64 head_state = static_cast<i64>(head) * args.key_dim * columns;

  f32x4 state[4 * kSteps];
  UNROLL for (u32 i = 0; i < 4 * kSteps; ++i) {
    const i64 key = 64 * (i / 4) + 4 * s + i % 4;
    state[i] = f32x4{0, 0, 0, 0};
    if (kWhole || (key < args.key_dim && own < columns)) {
      state[i] = quad_of(args.state_in + (head_state + key * columns), own, columns, aligned);
    }
  }

  const i64 key_head = head / static_cast<u32>(args.value_heads / args.key_heads);
  ScanToken ahead[kScanTurns];
  UNROLL for (u32 i = 0; i < kScanTurns; ++i) {
    ahead[i] = scan_read<kWhole>(t, args, t.simd + i * kScanSimds, head, key_head, column);
  }
  u32 half = 0;  // of the staging memory: one is read while the other is filled
  for (i64 first = 0; first < args.rows; first += kScanTokens) {
    UNROLL for (u32 i = 0; i < kScanTurns; ++i) {
      const u32 token = t.simd + i * kScanSimds;
      if (first + token >= args.rows) continue;  // the same for all lanes
      const u32 at = half * kScanTokens + token;
      scan_stage(t, args, ahead[i], q + at * kScanKeys, k + at * kScanKeys, v + at * kScanColumns,
                 factors + at * kScanFactors);
    }
    // What is read now is staged once these tokens are done.
    UNROLL for (u32 i = 0; i < kScanTurns; ++i) {
      ahead[i] =
          scan_read<kWhole>(t, args, first + kScanTokens + t.simd + i * kScanSimds, head, key_head, column);
    }
    barrier(t);
    const u32 tokens = static_cast<u32>(min_of(args.rows - first, static_cast<i64>(kScanTokens)));
    for (u32 token = 0; token < tokens; ++token) {
      if (!kWhole && column + 8 * t.simd >= columns) break;  // a SIMD group without columns
      const u32 at = half * kScanTokens + token;
      const f32 y = scan_token<kSteps>(t, q + at * kScanKeys, k + at * kScanKeys,
                                       v + (at * kScanColumns + 8 * t.simd + 4 * g),
                                       factors + at * kScanFactors, state);
      const u32 c = (s & 7) / 2;
      if (args.y != nullptr && has_answer(s) && (kWhole || own + c < columns)) {
        args.y[((first + token) * args.value_heads + head) * columns + own + c] = y;
      }
    }
    half ^= 1U;
  }

  UNROLL for (u32 i = 0; i < 4 * kSteps; ++i) {
    const i64 key = 64 * (i / 4) + 4 * s + i % 4;
    if (kWhole || (key < args.key_dim && own < columns)) {
      set_quad(args.state_out + (head_state + key * columns), own, columns, aligned, state[i]);
    }
  }
}

// Groups of all three: (parts of 32 columns, value heads).

/// The released model's heads: 128 keys, a multiple of 32 columns.
KERNEL(delta_scan_whole, DeltaScanArgs, kDeltaThreads) {
  KERNEL_THREAD(t);
  SHARED(f32, q, 2 * kScanTokens * kScanKeys);
  SHARED(f32, k, 2 * kScanTokens * kScanKeys);
  SHARED(f32, v, 2 * kScanTokens * kScanColumns);
  SHARED(f32, factors, 2 * kScanTokens * kScanFactors);
  scan_head<2, true>(t, args, q, k, v, factors);
}
/// Keys of at most 64.
KERNEL(delta_scan_short, DeltaScanArgs, kDeltaThreads) {
  KERNEL_THREAD(t);
  SHARED(f32, q, 2 * kScanTokens * kScanKeys);
  SHARED(f32, k, 2 * kScanTokens * kScanKeys);
  SHARED(f32, v, 2 * kScanTokens * kScanColumns);
  SHARED(f32, factors, 2 * kScanTokens * kScanFactors);
  scan_head<1, false>(t, args, q, k, v, factors);
}
/// Keys of at most 128.
KERNEL(delta_scan_any, DeltaScanArgs, kDeltaThreads) {
  KERNEL_THREAD(t);
  SHARED(f32, q, 2 * kScanTokens * kScanKeys);
  SHARED(f32, k, 2 * kScanTokens * kScanKeys);
  SHARED(f32, v, 2 * kScanTokens * kScanColumns);
  SHARED(f32, factors, 2 * kScanTokens * kScanFactors);
  scan_head<2, false>(t, args, q, k, v, factors);
}

}  // namespace sluice::kernels

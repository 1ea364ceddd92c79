// Norm, rotation and gate of attention heads (model.md 3.5, 3.6).
#pragma once

#include "quads.h"

#define SLUICE_HEADS_KERNELS(X) \
  X(norm_rope_heads)            \
  X(gate_heads)

namespace sluice::kernels {

constexpr u32 kHeadThreads = 128;

constexpr u32 kHeadParts = 5;
struct NormRopePart {
  Global<const f32> x;         // head h of row r at r * row_stride + h * head_stride
  Global<const f32> w;         // [dim]; null: the heads are copied as they are
  Global<const f32> cos, sin;  // [rows][rotated / 2]
  Global<f32> out;             // [rows][heads][dim]
  u32 heads, dim, row_stride, head_stride;
  u32 rotated, aligned;
};
struct NormRopeHeadsArgs {
  NormRopePart part[kHeadParts];
  u32 first[kHeadParts + 1];  // heads of all rows before each part
  f32 eps;
};

/// A normalised value and its partner, rotated: cos own -+ sin partner.
DEVICE_FUNCTION f32 rotate(f32 own, f32 partner, f32 cos, f32 sin, bool upper) {
  const f32 turned = partner * sin;
  return fma_f32(own, cos, upper ? turned : -turned);
}

/// A SIMD group a head: a lane's quads in order, then a butterfly. Pairs are (j, j + rotated / 2).
KERNEL(norm_rope_heads, NormRopeHeadsArgs, kHeadThreads) {
  KERNEL_THREAD(t);
  const u32 number = t.group_x * (kHeadThreads / 32) + t.simd;
  if (number >= args.first[kHeadParts]) return;
  u32 p = 0;
  UNROLL for (u32 i = 1; i < kHeadParts; ++i) p += number >= args.first[i] ? 1U : 0U;
  const NormRopePart part = args.part[p];
  const u32 head = number - args.first[p];
  const u32 row = head / part.heads;
  const u32 dim = part.dim;
  const bool aligned = part.aligned != 0;
  const Global<const f32> x =
      part.x + (static_cast<i64>(row) * part.row_stride + (head - row * part.heads) * part.head_stride);
  const Global<f32> out = part.out + static_cast<i64>(head) * dim;
  if (part.w == nullptr) {
    NO_UNROLL for (u32 at = 4 * t.lane; at < dim; at += 128) {
      set_quad(out, at, dim, aligned, quad_of(x, at, dim, aligned));
    }
    return;
  }
  f32 sum = 0;
  NO_UNROLL for (u32 at = 4 * t.lane; at < dim; at += 128) {
    const f32x4 v = quad_of(x, at, dim, aligned);
    sum = quad_dot(v, v, sum);
  }
  const f32 scale = 1 / sqrt_f32(simd_sum(t, sum) / static_cast<f32>(dim) + args.eps);
  const u32 half = part.rotated / 2;
  const Global<const f32> cos = part.cos + static_cast<i64>(row) * half;
  const Global<const f32> sin = part.sin + static_cast<i64>(row) * half;
  if (aligned) {
    NO_UNROLL for (u32 at = 4 * t.lane; at < dim; at += 128) {
      f32x4 v = quad_multiply(quad_scale(load4f(x, at), scale), load4f(part.w, at));
      if (at < 2 * half) {
        const bool upper = at >= half;
        const u32 other = upper ? at - half : at + half;
        const f32x4 q = quad_multiply(quad_scale(load4f(x, other), scale), load4f(part.w, other));
        const f32x4 c = load4f(cos, upper ? other : at);
        const f32x4 s = load4f(sin, upper ? other : at);
        v = f32x4{rotate(v.x, q.x, c.x, s.x, upper), rotate(v.y, q.y, c.y, s.y, upper),
                  rotate(v.z, q.z, c.z, s.z, upper), rotate(v.w, q.w, c.w, s.w, upper)};
      }
      store4f(out, at, v);
    }
    return;
  }
  NO_UNROLL for (u32 at = t.lane; at < dim; at += 32) {
    f32 v = x[at] * scale * part.w[at];
    if (at < 2 * half) {
      const bool upper = at >= half;
      const u32 other = upper ? at - half : at + half;
      const f32 q = x[other] * scale * part.w[other];
      v = rotate(v, q, cos[upper ? other : at], sin[upper ? other : at], upper);
    }
    out[at] = v;
  }
}

struct GateHeadsArgs {
  Global<const f32> gate;  // head h of row r at r * row_stride + h * head_stride
  Global<f32> out;         // [rows][heads][dim]
  i64 heads, dim, row_stride, head_stride;
  i64 quads, count;  // of a head, and of all
  u32 aligned;
};
/// A thread a quad.
KERNEL(gate_heads, GateHeadsArgs, kHeadThreads) {
  KERNEL_THREAD(t);
  const i64 i = static_cast<i64>(t.group_x) * kHeadThreads + t.index;
  if (i >= args.count) return;
  const bool aligned = args.aligned != 0;
  const i64 head = i / args.quads;
  const i64 at = 4 * (i % args.quads);
  const i64 row = head / args.heads;
  const Global<const f32> gate = args.gate + (row * args.row_stride + head % args.heads * args.head_stride);
  const Global<f32> out = args.out + head * args.dim;
  const f32x4 factor = quad_sigmoid(quad_of(gate, at, args.dim, aligned));
  set_quad(out, at, args.dim, aligned, quad_multiply(quad_of(out, at, args.dim, aligned), factor));
}

}  // namespace sluice::kernels

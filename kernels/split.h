// Products of float32 numbers on matrix units that take bfloat16: each number as the sum of three.
#pragma once

#include "dialect.h"

namespace sluice::kernels {

constexpr u32 kParts = 3;

/// Two numbers as three pairs of bfloat16, the largest first. Cutting off bits, unlike rounding, leaves a
/// remainder that is exact: three times eight bits are all that a float32 has.
struct SplitPair {
  u32 r[kParts];
};
DEVICE_FUNCTION SplitPair split_pair(f32 x, f32 y) {
  SplitPair pair;
  UNROLL
  for (u32 i = 0; i < kParts; ++i) {
    const u32 a = bits_of_f32(x);
    const u32 b = bits_of_f32(y);
    pair.r[i] = (a >> 16) | (b & 0xffff0000U);
    x -= f32_of_bits(a & 0xffff0000U);
    y -= f32_of_bits(b & 0xffff0000U);
  }
  return pair;
}

struct SplitA {
  MmaA part[kParts];
};
struct SplitB {
  MmaB part[kParts];
};
/// From the pairs of MmaB.
DEVICE_FUNCTION SplitB split_b(f32 x0, f32 x1, f32 x2, f32 x3) {
  const SplitPair first = split_pair(x0, x1);
  const SplitPair second = split_pair(x2, x3);
  SplitB b;
  UNROLL
  for (u32 i = 0; i < kParts; ++i) {
    b.part[i].r[0] = first.r[i];
    b.part[i].r[1] = second.r[i];
  }
  return b;
}

/// Fragments of A in the group's memory: the parts follow each other, `stride` lanes of four words apart.
DEVICE_FUNCTION SplitA load_split_a(Shared<u32> from, i64 at, i64 stride) {
  SplitA a;
  UNROLL
  for (u32 i = 0; i < kParts; ++i) {
    const u32x4 v = load4(from, (at + i * stride) * 4);
    a.part[i].r[0] = v.x;
    a.part[i].r[1] = v.y;
    a.part[i].r[2] = v.z;
    a.part[i].r[3] = v.w;
  }
  return a;
}
/// What load_split_a reads, from the four numbers that rows l / 4 and l / 4 + 8 give a lane.
DEVICE_FUNCTION void store_split_a(Shared<u32> to, i64 at, i64 stride, f32x4 row, f32x4 row8) {
  const SplitPair r0 = split_pair(row.x, row.y);
  const SplitPair r1 = split_pair(row8.x, row8.y);
  const SplitPair r2 = split_pair(row.z, row.w);
  const SplitPair r3 = split_pair(row8.z, row8.w);
  UNROLL
  for (u32 i = 0; i < kParts; ++i) {
    store4(to, (at + i * stride) * 4, u32x4{r0.r[i], r1.r[i], r2.r[i], r3.r[i]});
  }
}

DEVICE_FUNCTION MmaC no_sum() {
  MmaC c;
  UNROLL
  for (u32 i = 0; i < 4; ++i) c.r[i] = 0;
  return c;
}

/// c += a b but for what is below the last bit of float32: the small products first.
DEVICE_FUNCTION MmaC mma_split(const Thread& t, MmaC c, SplitA a, SplitB b) {
  mma_bf16(t, c, a.part[0], b.part[2]);
  mma_bf16(t, c, a.part[2], b.part[0]);
  mma_bf16(t, c, a.part[1], b.part[1]);
  mma_bf16(t, c, a.part[0], b.part[1]);
  mma_bf16(t, c, a.part[1], b.part[0]);
  mma_bf16(t, c, a.part[0], b.part[0]);
  return c;
}

/// The same for long sums: products of each size in a sum of their own, because matrix units cut what they
/// add to the size of the sum so far, and because sums that do not wait for each other overlap.
struct SplitSum {
  MmaC large, middle, small;
};
DEVICE_FUNCTION SplitSum no_split_sum() {
  SplitSum sum;
  sum.large = no_sum();
  sum.middle = no_sum();
  sum.small = no_sum();
  return sum;
}
DEVICE_FUNCTION SplitSum mma_split_sum(const Thread& t, SplitSum c, SplitA a, SplitB b) {
  mma_bf16(t, c.small, a.part[0], b.part[2]);
  mma_bf16(t, c.middle, a.part[0], b.part[1]);
  mma_bf16(t, c.large, a.part[0], b.part[0]);
  mma_bf16(t, c.small, a.part[2], b.part[0]);
  mma_bf16(t, c.middle, a.part[1], b.part[0]);
  mma_bf16(t, c.small, a.part[1], b.part[1]);
  return c;
}
DEVICE_FUNCTION f32 total_of(SplitSum c, u32 i) {
  return c.large.r[i] + (c.middle.r[i] + c.small.r[i]);
}

/// Four numbers from `x[at + d]` on, 0 from `dim` on. `at` and `d` are multiples of 4 if `dim` is.
DEVICE_FUNCTION f32x4 four_of(Global<const f32> x, i64 at, i64 d, i64 dim) {
  if (dim % 4 == 0) return d < dim ? load4f(x, at + d) : f32x4{0, 0, 0, 0};
  return f32x4{d < dim ? f32(x[at + d]) : 0, d + 1 < dim ? f32(x[at + d + 1]) : 0,
               d + 2 < dim ? f32(x[at + d + 2]) : 0, d + 3 < dim ? f32(x[at + d + 3]) : 0};
}

}  // namespace sluice::kernels

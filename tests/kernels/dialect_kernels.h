// Kernels that use every word of the dialect once: run on the emulated device by tests/backend, checked in
// form as Metal text by tests/kernels/metal_text. They are no kernels of the engine.
#pragma once

#include "dialect.h"

namespace sluice::kernels {

constexpr u32 kProbeThreads = 64;

struct ProbeSimdArgs {
  Global<const f32> x;  // [groups][64]
  Global<f32> sum, max, reversed, neighbour;
  Global<u32> positive;
};
/// A group 64 numbers.
KERNEL(probe_simd, ProbeSimdArgs, kProbeThreads) {
  KERNEL_THREAD(t);
  const i64 i = static_cast<i64>(t.group_x) * kProbeThreads + t.index;
  const f32 x = args.x[i];
  args.sum[i] = simd_sum(t, x);
  args.max[i] = simd_max(t, x);
  args.reversed[i] = simd_shuffle(t, x, 31 - t.lane);
  args.neighbour[i] = f32_of_bits(simd_shuffle_xor(t, bits_of_f32(x), 1));
  args.positive[i] = simd_ballot(t, x > 0);
}

struct ProbeGroupArgs {
  Global<const f32> x;   // [groups][64]
  Global<f32> sum, max;  // [groups]
  Global<u32> count;     // [groups]: those greater than 0
  Global<f32> turned;    // [groups][64]: of each SIMD group, from the other one
};
KERNEL_RESIDENT(probe_group, ProbeGroupArgs, kProbeThreads, 2) {
  KERNEL_THREAD(t);
  SHARED(f32, each, kProbeThreads / 32);
  SHARED(u32, counter, 1);
  SHARED(f32, all, kProbeThreads);
  const i64 i = static_cast<i64>(t.group_x) * kProbeThreads + t.index;
  if (t.index == 0) counter[0] = 0;
  all[t.index] = args.x[i];
  barrier(t);
  args.turned[i] = all[(t.index + 32) % kProbeThreads];
  if (all[t.index] > 0) shared_atomic_add(counter, 1);
  simd_barrier(t);
  const f32 sum = group_sum(t, args.x[i], each, kProbeThreads / 32);
  const f32 max = group_max(t, args.x[i], each, kProbeThreads / 32);
  if (t.index != 0) return;
  args.sum[t.group_x] = sum;
  args.max[t.group_x] = max;
  args.count[t.group_x] = counter[0];
}

struct ProbeMemoryArgs {
  Global<const f32> x;  // [64 * 16]
  Global<f32> y;        // the same, 16 numbers a thread
  u64 x_bits;           // the address of x
};
/// Copies through every width, to the group's memory and back.
KERNEL(probe_memory, ProbeMemoryArgs, kProbeThreads) {
  KERNEL_THREAD(t);
  SHARED(f32, kept, kProbeThreads * 16);
  const i64 at = static_cast<i64>(t.index) * 16;
  const Global<const u32> words = retype<const u32>(args.x);
  const Global<const f32> again = global_of_bits<const f32>(args.x_bits);
  store4f(kept, at, load4f(args.x, at));
  store4(kept, at + 4, load4(words, at + 4));
  store2(kept, at + 8, load2(again, at + 8));
  kept[at + 10] = f32_of_bits(load1(args.x + 10, at));
  kept[at + 11] = again[at + 11];
  store4(kept + 12, at, load4(args.x, at + 12));
  const Shared<f32> mine = kept + at;
  store4f(args.y, at, load4f(mine, 0));
  store4(args.y + 4, at, load4(mine, 4));
  store2(args.y, at + 8, load2(mine, 8));
  store2(retype<u32>(args.y), at + 10, load2(kept, at + 10));
  args.y[at + 12] = f32_of_bits(load1(mine, 12));
  args.y[at + 13] = mine[13];
  args.y[at + 14] = 0;
  args.y[at + 14] += mine[14];
  args.y[at + 15] = mine[15];
}

/// A part of arguments, which is passed by value.
struct Bounds {
  i64 count;
  DEVICE_FUNCTION bool holds(i64 i) const { return i < count; }
};
struct ProbeNumbersArgs {
  Global<const f32> x;  // [count]
  Global<f32> y;        // [count][kNumbers]
  Bounds bounds;
};
constexpr u32 kNumbers = 20;
DEVICE_FUNCTION bool within(Bounds bounds, i64 i) {
  return bounds.holds(i);
}
/// What is spelt out for Metal where others have it.
KERNEL(probe_numbers, ProbeNumbersArgs, kProbeThreads) {
  KERNEL_THREAD_EARLY(t);
  fetch_line(args.x);
  loads_stay();
  wait_for_kernel_before();
  const i64 i = static_cast<i64>(t.group_x) * kProbeThreads + t.index;
  if (!within(args.bounds, i)) return;
  const f32 x = args.x[i];
  const Global<f32> y = args.y + i * kNumbers;
  y[0] = x > 0 ? f32_of_half(half_of_f32(x)) : f32_of_half(static_cast<u16>(half2_of_f32(-x, x) >> 16));
  y[1] = f32_of_bf16(bf16_of_f32(x));
  y[2] = exp_f32(x);
  y[3] = exp2_f32(x);
  y[4] = log1p_f32(abs_f32(x));
  y[5] = sqrt_f32(abs_f32(x));
  y[6] = fma_f32(x, x, 1);
  y[7] = max_f32(x, f32_of_bits(0x7fc00000U));
  y[8] = min_of(x, abs_f32(x));
  y[9] = max_of(x, -x);
  y[10] = static_cast<f32>(count_bits(bits_of_f32(x)));
  y[11] = sigmoid(x);
  y[12] = silu(x);
  y[13] = softplus(x);
  y[14] = static_cast<f32>(order_key(x) > order_key(0));
  const u32 difference = half2_of_codes(7U | 1023U << 16);
  y[15] = f32_of_half(static_cast<u16>(difference & 0xffffU)) * kCodesPerHalf;
  y[16] = f32_of_half(static_cast<u16>(difference >> 16)) * kCodesPerHalf;
  const u64 address_size = sizeof(args.x);
  y[17] = static_cast<f32>(address_size);
  y[18] = static_cast<f32>(t.groups_x * 100 + t.groups_y * 10 + t.group_y + t.group_z);
  y[19] = is_nan(x) ? 1.0F : 0.0F;
}

struct ProbeMmaArgs {
  Global<const u32> a;  // [32][4]
  Global<const u32> b;  // [32][2]
  Global<f32> c_f16;    // [32][4]
  Global<f32> c_bf16;   // [32][4]
};
template <u32 kCount>
struct Accumulators {
  static constexpr u32 kWords = kCount * 4;
  MmaC c[kCount];
};
DEVICE_FUNCTION void load_accumulator(const ProbeMmaArgs& args, i64 lane, MmaC& half_sum, f32 (&other)[4]) {
  for (u32 i = 0; i < 4; ++i) {
    half_sum.r[i] = args.c_f16[lane * 4 + i];
    other[i] = args.c_bf16[lane * 4 + i];
  }
}
/// One SIMD group: both kinds of the matrix primitive.
KERNEL(probe_mma, ProbeMmaArgs, 32) {
  KERNEL_THREAD(t);
  MmaA a;
  MmaB b;
  UNROLL
  for (u32 i = 0; i < 4; ++i) a.r[i] = args.a[t.lane * 4 + i];
  UNROLL
  for (u32 i = 0; i < 2; ++i) b.r[i] = args.b[t.lane * 2 + i];
  Accumulators<2> sums;
  f32 second[Accumulators<1>::kWords];
  load_accumulator(args, t.lane, sums.c[0], second);
  for (u32 i = 0; i < 4; ++i) sums.c[1].r[i] = second[i];
  mma_f16(t, sums.c[0], a, b);
  mma_bf16(t, sums.c[1], a, b);
  for (u32 i = 0; i < 4; ++i) {
    args.c_f16[t.lane * 4 + i] = sums.c[0].r[i];
    args.c_bf16[t.lane * 4 + i] = sums.c[1].r[i];
  }
}

}  // namespace sluice::kernels

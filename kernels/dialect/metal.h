// The dialect on Metal (MSL 3.1, Metal 3). It is compiled only as scripts/emit-metal writes it, which gives
// every reference and pointer its address space: `constant` to structs whose names end in Args, `thread` to
// all others.
#pragma once

#include <metal_stdlib>

// The device compiles without "fast math"; kernels fuse where they say so.
#pragma clang fp contract(off)

namespace sluice::kernels {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long;
using i8 = signed char;
using i32 = int;
using i64 = long;
using f32 = float;

#define DEVICE_FUNCTION inline __attribute__((always_inline))
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("clang loop unroll(disable)")

template <class T>
using Global = device T*;
template <class T>
using Shared = threadgroup T*;

struct Thread {
  u32 index, lane, simd;
  u32 group_x, group_y, group_z;
  u32 groups_x, groups_y;
};

// SIMD groups are numbered by the device; a thread's index follows from them, whatever its own order is.
#define KERNEL(name, KernelArgs, threads)                                                                  \
  [[kernel, max_total_threads_per_threadgroup(threads)]] void name(                                        \
      const KernelArgs& args [[buffer(0)]], metal::uint3 sluice_group [[threadgroup_position_in_grid]],    \
      metal::uint3 sluice_groups [[threadgroups_per_grid]], u32 sluice_lane [[thread_index_in_simdgroup]], \
      u32 sluice_simd [[simdgroup_index_in_threadgroup]])
#define KERNEL_RESIDENT(name, KernelArgs, threads, groups) KERNEL(name, KernelArgs, threads)
#define KERNEL_THREAD(t)                                             \
  [[maybe_unused]] const Thread t = {sluice_simd * 32 + sluice_lane, \
                                     sluice_lane,                    \
                                     sluice_simd,                    \
                                     sluice_group.x,                 \
                                     sluice_group.y,                 \
                                     sluice_group.z,                 \
                                     sluice_groups.x,                \
                                     sluice_groups.y}
/// Commands follow each other here: nothing starts early (dialect/cuda.h).
#define KERNEL_THREAD_EARLY(t) KERNEL_THREAD(t)
DEVICE_FUNCTION void wait_for_kernel_before() {}
// How a variable of the group is declared; kernels/metal/prelude.h has to say it otherwise.
#ifndef SLUICE_GROUP_VARIABLE
#define SLUICE_GROUP_VARIABLE threadgroup
#endif
#define SHARED(T, name, count) alignas(16) SLUICE_GROUP_VARIABLE T name[count]

DEVICE_FUNCTION void barrier(const Thread&) {
  metal::threadgroup_barrier(metal::mem_flags::mem_device | metal::mem_flags::mem_threadgroup);
}
DEVICE_FUNCTION void simd_barrier(const Thread&) {
  metal::simdgroup_barrier(metal::mem_flags::mem_device | metal::mem_flags::mem_threadgroup);
}
template <class T>
DEVICE_FUNCTION T simd_shuffle(const Thread&, T value, u32 lane) {
  return metal::simd_shuffle(value, static_cast<u16>(lane));
}
template <class T>
DEVICE_FUNCTION T simd_shuffle_xor(const Thread&, T value, u32 mask) {
  return metal::simd_shuffle_xor(value, static_cast<u16>(mask));
}
DEVICE_FUNCTION u32 simd_ballot(const Thread&, bool value) {
  return static_cast<u32>(static_cast<u64>(metal::simd_ballot(value)));
}
DEVICE_FUNCTION u32 shared_atomic_add(Shared<u32> at, u32 value) {
  return metal::atomic_fetch_add_explicit(reinterpret_cast<Shared<metal::atomic_uint>>(at), value,
                                          metal::memory_order_relaxed);
}

// --- bits and numbers ---
DEVICE_FUNCTION u32 bits_of_f32(f32 x) {
  return as_type<u32>(x);
}
DEVICE_FUNCTION f32 f32_of_bits(u32 x) {
  return as_type<f32>(x);
}
DEVICE_FUNCTION f32 f32_of_half(u16 x) {
  return static_cast<f32>(as_type<half>(x));
}
DEVICE_FUNCTION u16 half_of_f32(f32 x) {
  return as_type<u16>(static_cast<half>(x));
}
DEVICE_FUNCTION u32 count_bits(u32 x) {
  return metal::popcount(x);
}
DEVICE_FUNCTION f32 log1p_composed(f32 x, f32 log_of_sum);
DEVICE_FUNCTION f32 exp_f32(f32 x) {
  return metal::precise::exp(x);
}
DEVICE_FUNCTION f32 exp2_f32(f32 x) {
  return metal::precise::exp2(x);
}
DEVICE_FUNCTION f32 log1p_f32(f32 x) {
  return log1p_composed(x, metal::precise::log(1 + x));
}
DEVICE_FUNCTION f32 sqrt_f32(f32 x) {
  return metal::precise::sqrt(x);
}
DEVICE_FUNCTION f32 abs_f32(f32 x) {
  return metal::fabs(x);
}
DEVICE_FUNCTION f32 fma_f32(f32 a, f32 b, f32 c) {
  return metal::fma(a, b, c);
}
DEVICE_FUNCTION f32 max_f32(f32 a, f32 b) {
  return metal::precise::fmax(a, b);
}
template <class T>
DEVICE_FUNCTION T min_of(T a, T b) {
  return b < a ? b : a;
}
template <class T>
DEVICE_FUNCTION T max_of(T a, T b) {
  return a < b ? b : a;
}

// --- wide accesses, of both kinds of memory ---
struct u32x2 {
  u32 x, y;
};
struct u32x4 {
  u32 x, y, z, w;
};
struct f32x4 {
  f32 x, y, z, w;
};
#define SLUICE_WIDE_ACCESSES(Memory)                                                   \
  template <class T>                                                                   \
  DEVICE_FUNCTION u32 load1(Memory<T> from, i64 at) {                                  \
    return *reinterpret_cast<Memory<const u32>>(from + at);                            \
  }                                                                                    \
  template <class T>                                                                   \
  DEVICE_FUNCTION u32x2 load2(Memory<T> from, i64 at) {                                \
    const metal::uint2 v = *reinterpret_cast<Memory<const metal::uint2>>(from + at);   \
    return {v.x, v.y};                                                                 \
  }                                                                                    \
  template <class T>                                                                   \
  DEVICE_FUNCTION u32x4 load4(Memory<T> from, i64 at) {                                \
    const metal::uint4 v = *reinterpret_cast<Memory<const metal::uint4>>(from + at);   \
    return {v.x, v.y, v.z, v.w};                                                       \
  }                                                                                    \
  DEVICE_FUNCTION f32x4 load4f(Memory<const f32> from, i64 at) {                       \
    const metal::float4 v = *reinterpret_cast<Memory<const metal::float4>>(from + at); \
    return {v.x, v.y, v.z, v.w};                                                       \
  }                                                                                    \
  template <class T>                                                                   \
  DEVICE_FUNCTION void store2(Memory<T> to, i64 at, u32x2 v) {                         \
    metal::uint2 wide;                                                                 \
    wide.x = v.x;                                                                      \
    wide.y = v.y;                                                                      \
    *reinterpret_cast<Memory<metal::uint2>>(to + at) = wide;                           \
  }                                                                                    \
  template <class T>                                                                   \
  DEVICE_FUNCTION void store4(Memory<T> to, i64 at, u32x4 v) {                         \
    metal::uint4 wide;                                                                 \
    wide.x = v.x;                                                                      \
    wide.y = v.y;                                                                      \
    wide.z = v.z;                                                                      \
    wide.w = v.w;                                                                      \
    *reinterpret_cast<Memory<metal::uint4>>(to + at) = wide;                           \
  }                                                                                    \
  DEVICE_FUNCTION void store4f(Memory<f32> to, i64 at, f32x4 v) {                      \
    metal::float4 wide;                                                                \
    wide.x = v.x;                                                                      \
    wide.y = v.y;                                                                      \
    wide.z = v.z;                                                                      \
    wide.w = v.w;                                                                      \
    *reinterpret_cast<Memory<metal::float4>>(to + at) = wide;                          \
  }                                                                                    \
  template <class T, class U>                                                          \
  DEVICE_FUNCTION Memory<T> retype(Memory<U> p) {                                      \
    return reinterpret_cast<Memory<T>>(p);                                             \
  }
SLUICE_WIDE_ACCESSES(Global)
SLUICE_WIDE_ACCESSES(Shared)
/// Nothing here fetches ahead.
constexpr u32 kLine = 128;
template <class T>
DEVICE_FUNCTION void fetch_line(Global<const T>) {}
template <class T>
DEVICE_FUNCTION Global<T> global_of_bits(u64 bits) {
  return reinterpret_cast<Global<T>>(bits);
}
DEVICE_FUNCTION void loads_stay() {}

// --- matrix units: fragments as CUDA lays them out (dialect/cuda.h), moved to 8x8 tiles and back ---
struct MmaA {
  u32 r[4];
};
struct MmaB {
  u32 r[2];
};
struct MmaC {
  f32 r[4];
};

}  // namespace sluice::kernels

#include "dialect/composed.h"

namespace sluice::kernels {

template <class Number>
struct TilesOf {
  using Tile = metal::simdgroup_matrix<Number, 8, 8>;

  static void set(Tile& tile, u32 pair) {
    tile.thread_elements()[0] = as_type<Number>(static_cast<u16>(pair));
    tile.thread_elements()[1] = as_type<Number>(static_cast<u16>(pair >> 16));
  }
  static TilePair multiply(const Thread&, u32 a0, u32 b0, u32 a1, u32 b1) {
    metal::simdgroup_matrix<f32, 8, 8> sum(0.0F);
    Tile left;
    Tile right;
    set(left, a0);
    set(right, b0);
    metal::simdgroup_multiply_accumulate(sum, left, right, sum);
    set(left, a1);
    set(right, b1);
    metal::simdgroup_multiply_accumulate(sum, left, right, sum);
    return {sum.thread_elements()[0], sum.thread_elements()[1]};
  }
};
DEVICE_FUNCTION void mma_f16(const Thread& t, MmaC& c, const MmaA& a, const MmaB& b) {
  mma_of_tiles<TilesOf<half>>(t, c, a, b);
}
DEVICE_FUNCTION void mma_bf16(const Thread& t, MmaC& c, const MmaA& a, const MmaB& b) {
  mma_of_tiles<TilesOf<bfloat>>(t, c, a, b);
}
/// Two numbers below 1024, one in each half of the word, as two halves: 0x6400 is 1024, whose last bit counts
/// 1. Halves below 2^-14 would need no arithmetic, but Metal may take them for 0.
constexpr f32 kCodesPerHalf = 1;
DEVICE_FUNCTION u32 half2_of_codes(u32 codes) {
  const u32 offset = 0x64006400U;
  return as_type<u32>(as_type<metal::half2>(codes | offset) - as_type<metal::half2>(offset));
}
DEVICE_FUNCTION u32 half2_of_bytes(u32 codes, bool times_16) {
  const u32 factor = times_16 ? 0x4c004c00U : 0x3c003c00U;  // 16 or 1
  return as_type<u32>(as_type<metal::half2>(half2_of_codes(codes)) * as_type<metal::half2>(factor));
}
template <class T, class U>
DEVICE_FUNCTION void copy16_async(Shared<T> to, i64 to_at, Global<const U> from, i64 from_at) {
  store4(to, to_at, load4(from, from_at));
}
template <class T, class U>
DEVICE_FUNCTION void copy8_async(Shared<T> to, i64 to_at, Global<const U> from, i64 from_at) {
  store2(to, to_at, load2(from, from_at));
}
template <class T, class U>
DEVICE_FUNCTION void copy4_async(Shared<T> to, i64 to_at, Global<const U> from, i64 from_at) {
  to[to_at] = from[from_at];
}
DEVICE_FUNCTION void async_commit() {}
template <u32 kLeft>
DEVICE_FUNCTION void async_wait() {}

}  // namespace sluice::kernels

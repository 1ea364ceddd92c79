// The dialect on CUDA.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace sluice::kernels {

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;
using i8 = signed char;
using i32 = int;
using i64 = long long;
using f32 = float;

#define DEVICE_FUNCTION __device__ __forceinline__
#define UNROLL _Pragma("unroll")
/// Before a loop whose code would be the larger: an instruction that is run once must be fetched first.
#define NO_UNROLL _Pragma("unroll 1")

template <class T>
using Global = T*;
template <class T>
using Shared = T*;

struct Thread {
  u32 index, lane, simd;
  u32 group_x, group_y, group_z;
  u32 groups_x, groups_y;
};

#define KERNEL(name, ArgsType, threads) \
  extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ ArgsType args)
/// With a least number of groups that a multiprocessor should hold at once.
#define KERNEL_RESIDENT(name, ArgsType, threads, groups) \
  extern "C" __global__ void __launch_bounds__(threads, groups) name(const __grid_constant__ ArgsType args)
/// And with `words` 32-bit words of the group's memory beside what SHARED takes: LARGE_SHARED names them.
#define KERNEL_LARGE(name, ArgsType, threads, groups, words) KERNEL_RESIDENT(name, ArgsType, threads, groups)

// A kernel is started while the one before still runs (graphs.cpp), when all of that one's groups are past
// their wait: whatever was issued earlier has ended then. Before its own wait a kernel may therefore read
// what the one just before does not write, weights above all; it writes nothing.
DEVICE_FUNCTION void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
/// For kernels that begin before the one before has ended: every thread calls wait_for_kernel_before().
/// The number of a SIMD group is passed on by its first lane, so that the compiler knows that all have the
/// same.
#define KERNEL_THREAD_EARLY(t)                                                                            \
  const Thread t {                                                                                        \
    threadIdx.x, threadIdx.x % 32, __shfl_sync(0xffffffffU, threadIdx.x / 32, 0), blockIdx.x, blockIdx.y, \
        blockIdx.z, gridDim.x, gridDim.y                                                                  \
  }
#define KERNEL_THREAD(t)  \
  KERNEL_THREAD_EARLY(t); \
  wait_for_kernel_before()
#define SHARED(T, name, count) __shared__ alignas(16) T name[count]
#define LARGE_SHARED(name, words) extern __shared__ __align__(1024) u32 name[]

DEVICE_FUNCTION void barrier(const Thread&) {
  __syncthreads();
}
DEVICE_FUNCTION void simd_barrier(const Thread&) {
  __syncwarp();
}
template <class T>
DEVICE_FUNCTION T simd_shuffle(const Thread&, T value, u32 lane) {
  return __shfl_sync(0xffffffffU, value, static_cast<int>(lane));
}
template <class T>
DEVICE_FUNCTION T simd_shuffle_xor(const Thread&, T value, u32 mask) {
  return __shfl_xor_sync(0xffffffffU, value, static_cast<int>(mask));
}
/// The lanes whose `value` is true, lane 0 in the lowest bit.
DEVICE_FUNCTION u32 simd_ballot(const Thread&, bool value) {
  return __ballot_sync(0xffffffffU, value);
}
#define SLUICE_OWN_SIMD_MAX_U32
DEVICE_FUNCTION u32 simd_max_u32(const Thread&, u32 x) {
  return __reduce_max_sync(0xffffffffU, x);
}
/// Adds to a counter of the group's memory and gives what it was.
DEVICE_FUNCTION u32 shared_atomic_add(Shared<u32> at, u32 value) {
  return atomicAdd(at, value);
}

// --- bits and numbers ---
DEVICE_FUNCTION u32 bits_of_f32(f32 x) {
  return __float_as_uint(x);
}
DEVICE_FUNCTION f32 f32_of_bits(u32 x) {
  return __uint_as_float(x);
}
DEVICE_FUNCTION f32 f32_of_half(u16 x) {
  return __half2float(__ushort_as_half(x));
}
/// Rounds to nearest even; too large becomes infinity.
DEVICE_FUNCTION u16 half_of_f32(f32 x) {
  return __half_as_ushort(__float2half_rn(x));
}
#define SLUICE_OWN_HALF2
/// Two numbers rounded to halves, `low` in the lower 16 bits.
DEVICE_FUNCTION u32 half2_of_f32(f32 low, f32 high) {
  u32 word = 0;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
DEVICE_FUNCTION u32 count_bits(u32 x) {
  return __popc(x);
}
DEVICE_FUNCTION f32 exp_f32(f32 x) {
  return expf(x);
}
DEVICE_FUNCTION f32 exp2_f32(f32 x) {
  return exp2f(x);
}
DEVICE_FUNCTION f32 log1p_f32(f32 x) {
  return log1pf(x);
}
DEVICE_FUNCTION f32 sqrt_f32(f32 x) {
  return sqrtf(x);
}
DEVICE_FUNCTION f32 abs_f32(f32 x) {
  return fabsf(x);
}
DEVICE_FUNCTION f32 fma_f32(f32 a, f32 b, f32 c) {
  return fmaf(a, b, c);
}
/// The larger; the number if one is NaN.
DEVICE_FUNCTION f32 max_f32(f32 a, f32 b) {
  return fmaxf(a, b);
}
template <class T>
DEVICE_FUNCTION T min_of(T a, T b) {
  return b < a ? b : a;
}
template <class T>
DEVICE_FUNCTION T max_of(T a, T b) {
  return a < b ? b : a;
}

// --- wide accesses: `at` counts elements of the pointer's type; addresses must be multiples of the width ---
struct u32x2 {
  u32 x, y;
};
struct u32x4 {
  u32 x, y, z, w;
};
struct f32x4 {
  f32 x, y, z, w;
};
template <class T>
DEVICE_FUNCTION u32x2 load2(const T* from, i64 at) {
  const uint2 v = *reinterpret_cast<const uint2*>(from + at);
  return {v.x, v.y};
}
template <class T>
DEVICE_FUNCTION u32x4 load4(const T* from, i64 at) {
  const uint4 v = *reinterpret_cast<const uint4*>(from + at);
  return {v.x, v.y, v.z, v.w};
}
template <class T>
DEVICE_FUNCTION u32 load1(const T* from, i64 at) {
  return *reinterpret_cast<const u32*>(from + at);
}
DEVICE_FUNCTION f32x4 load4f(const f32* from, i64 at) {
  const float4 v = *reinterpret_cast<const float4*>(from + at);
  return {v.x, v.y, v.z, v.w};
}
template <class T>
DEVICE_FUNCTION void store4(T* to, i64 at, u32x4 v) {
  *reinterpret_cast<uint4*>(to + at) = make_uint4(v.x, v.y, v.z, v.w);
}
template <class T>
DEVICE_FUNCTION void store2(T* to, i64 at, u32x2 v) {
  *reinterpret_cast<uint2*>(to + at) = make_uint2(v.x, v.y);
}
DEVICE_FUNCTION void store4f(f32* to, i64 at, f32x4 v) {
  *reinterpret_cast<float4*>(to + at) = make_float4(v.x, v.y, v.z, v.w);
}
/// Asks for the line of kLine bytes around an address to be brought nearer.
constexpr u32 kLine = 128;
template <class T>
DEVICE_FUNCTION void fetch_line(const T* from) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}
/// The same address read as another type.
template <class T, class U>
DEVICE_FUNCTION T* retype(U* p) {
  return reinterpret_cast<T*>(p);
}
/// An address that was kept as a number.
template <class T>
DEVICE_FUNCTION T* global_of_bits(u64 bits) {
  T* const at = reinterpret_cast<T*>(bits);
  __builtin_assume(__isGlobal(at));  // or every access would find out
  return at;
}
/// What is read after this is not read before it: the compiler would keep it in registers meanwhile, and
/// others in memory for that.
DEVICE_FUNCTION void loads_stay() {
  asm volatile("" ::: "memory");
}

// --- matrix units: c[16][8] += a[16][16] b[16][8] ---
/// Lane l holds, as pairs of 16-bit numbers, rows l / 4 and l / 4 + 8 (r[0], r[1]) at inputs 2 (l % 4), + 1,
/// and the same rows (r[2], r[3]) 8 inputs further on.
struct MmaA {
  u32 r[4];
};
/// Lane l holds column l / 4 at inputs 2 (l % 4), + 1 (r[0]) and 8 inputs further on (r[1]).
struct MmaB {
  u32 r[2];
};
/// Lane l holds row l / 4 (r[0], r[1]) and row l / 4 + 8 (r[2], r[3]) of columns 2 (l % 4) and + 1.
struct MmaC {
  f32 r[4];
};
DEVICE_FUNCTION void mma_f16(const Thread&, MmaC& c, const MmaA& a, const MmaB& b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c.r[0]), "+f"(c.r[1]), "+f"(c.r[2]), "+f"(c.r[3])
      : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]));
}
DEVICE_FUNCTION void mma_bf16(const Thread&, MmaC& c, const MmaA& a, const MmaB& b) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c.r[0]), "+f"(c.r[1]), "+f"(c.r[2]), "+f"(c.r[3])
      : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "r"(b.r[0]), "r"(b.r[1]));
}
/// Two numbers below 1024, one in each half of the word, as two halves that are kCodesPerHalf times smaller:
/// the bits of a half below 2^-14 are such a number.
constexpr f32 kCodesPerHalf = 16777216.0F;
DEVICE_FUNCTION u32 half2_of_codes(u32 codes) {
  return codes;
}
/// Two numbers below 256 as two halves, times 16 if asked for: 0x6400 is 1024, whose last bit counts 1.
DEVICE_FUNCTION u32 half2_of_bytes(u32 codes, bool times_16) {
  const u32 raised = codes | 0x64006400U;
  const u32 factor = times_16 ? 0x4c004c00U : 0x3c003c00U;   // 16 or 1
  const u32 without = times_16 ? 0xf400f400U : 0xe400e400U;  // -16384 or -1024
  const __half2 d =
      __hfma2(*reinterpret_cast<const __half2*>(&raised), *reinterpret_cast<const __half2*>(&factor),
              *reinterpret_cast<const __half2*>(&without));
  return *reinterpret_cast<const u32*>(&d);
}
/// 16 bytes to the group's memory while the thread goes on; async_wait(n) waits for all but the last n
/// commits of this thread.
template <class T, class U>
DEVICE_FUNCTION void copy16_async(Shared<T> to, i64 to_at, Global<const U> from, i64 from_at) {
  const u32 address = static_cast<u32>(__cvta_generic_to_shared(to + to_at));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from + from_at));
}
template <class T, class U>
DEVICE_FUNCTION void copy8_async(Shared<T> to, i64 to_at, Global<const U> from, i64 from_at) {
  const u32 address = static_cast<u32>(__cvta_generic_to_shared(to + to_at));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(address), "l"(from + from_at));
}
template <class T, class U>
DEVICE_FUNCTION void copy4_async(Shared<T> to, i64 to_at, Global<const U> from, i64 from_at) {
  const u32 address = static_cast<u32>(__cvta_generic_to_shared(to + to_at));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(address), "l"(from + from_at));
}
DEVICE_FUNCTION void async_commit() {
  asm volatile("cp.async.commit_group;");
}
template <u32 kLeft>
DEVICE_FUNCTION void async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

}  // namespace sluice::kernels

// A stand-in for <metal_stdlib>, with which clang for this machine checks the form of the Metal text:
// declarations of what the dialect uses and nothing more. Address spaces are real ones, so that mixing them
// is an error; nothing made with it ever runs.
#pragma once

// --- words of the language ---
#define kernel
#define thread
#define device __attribute__((address_space(1)))
// Plain constants are for what Metal can and this language cannot: copying a struct out of constant memory.
#if defined(SLUICE_PLAIN_CONSTANTS)
#define constant
#else
#define constant __attribute__((address_space(2)))
#endif
#define threadgroup __attribute__((address_space(3)))
// Here only a static variable may have an address space.
#define SLUICE_GROUP_VARIABLE static threadgroup

struct half {
  half() = default;
  explicit half(float x);
  explicit operator float() const;
  unsigned short bits;
};
struct bfloat {
  bfloat() = default;
  explicit bfloat(float x);
  explicit operator float() const;
  unsigned short bits;
};

/// The same bits as another type.
template <class To, class From>
To as_type(From from) {
  static_assert(sizeof(To) == sizeof(From), "as_type keeps the size");
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

// --- the library ---
namespace metal {

typedef unsigned int uint2 __attribute__((ext_vector_type(2)));
typedef unsigned int uint3 __attribute__((ext_vector_type(3)));
typedef unsigned int uint4 __attribute__((ext_vector_type(4)));
typedef float float4 __attribute__((ext_vector_type(4)));
struct half2 {
  half x, y;
};
half2 operator-(half2 a, half2 b);
half2 operator*(half2 a, half2 b);

unsigned int popcount(unsigned int x);
float fabs(float x);
float fma(float a, float b, float c);
namespace precise {
float exp(float x);
float exp2(float x);
float log(float x);
float sqrt(float x);
float fmax(float a, float b);
}  // namespace precise

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
mem_flags operator|(mem_flags a, mem_flags b);
void threadgroup_barrier(mem_flags flags);
void simdgroup_barrier(mem_flags flags);

template <class T>
T simd_shuffle(T value, unsigned short lane) {
  static_assert(sizeof(T) <= 4, "Metal shuffles no 64-bit values");
  return lane == 0 ? value : T();
}
template <class T>
T simd_shuffle_xor(T value, unsigned short mask) {
  return simd_shuffle(value, mask);
}
struct simd_vote {
  explicit operator unsigned long() const;
};
simd_vote simd_ballot(bool value);

struct atomic_uint {
  unsigned int value;
};
enum memory_order { memory_order_relaxed };
unsigned int atomic_fetch_add_explicit(threadgroup atomic_uint* at, unsigned int value, memory_order order);

template <class T, int kColumns, int kRows>
struct simdgroup_matrix {
  static_assert(kColumns == 8 && kRows == 8, "Metal has tiles of 8x8");
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T diagonal);
  typedef T Elements[2];
  Elements& thread_elements() { return elements_; }

 private:
  Elements elements_;
};
template <class A, class B>
void simdgroup_multiply_accumulate(simdgroup_matrix<float, 8, 8>& d, simdgroup_matrix<A, 8, 8>& a,
                                   simdgroup_matrix<B, 8, 8>& b, simdgroup_matrix<float, 8, 8>& c);

}  // namespace metal

// What Metal lacks.
#pragma GCC poison double goto virtual dynamic_cast typeid throw try catch new delete thread_local asm

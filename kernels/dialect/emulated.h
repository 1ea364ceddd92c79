// The dialect on the emulated device: every thread of a group is a fiber, every access to memory is checked.
#pragma once

#include <cmath>
#include <cstring>

#include "backend/gpu/emulated/lane.h"
#include "backend/gpu/emulated/memory.h"
#include "base/numbers.h"

namespace sluice::kernels {

using u8 = std::uint8_t;
using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using i8 = std::int8_t;
using i32 = std::int32_t;
using i64 = std::int64_t;
using f32 = float;
using Thread = emulated::Thread;

#define DEVICE_FUNCTION inline
#define UNROLL
/// Before a loop whose code would be the larger: an instruction that is run once must be fetched first.
#define NO_UNROLL

/// An element that may be written: reads and writes of it are told apart.
template <class T>
class Element {
 public:
  explicit Element(u64 address) : address_(address) {}
  operator T() const { return emulated::read<T>(address_); }  // NOLINT: stands for the value
  Element& operator=(T value) {
    emulated::write<T>(address_, value);
    return *this;
  }
  Element& operator=(const Element& other) { return *this = static_cast<T>(other); }
  Element(const Element&) = default;
  ~Element() = default;
  Element& operator+=(T value) { return *this = static_cast<T>(*this) + value; }

 private:
  u64 address_;
};

/// An address in device memory. Its size is an address's, as in the structs that go to other devices.
template <class T>
class Global {
 public:
  Global() = default;
  Global(T* pointer) : address_(reinterpret_cast<u64>(pointer)) {}  // NOLINT: implicit by design
  explicit Global(u64 address, int) : address_(address) {}
  template <class U>
  requires(std::is_convertible_v<U*, T*> && !std::is_same_v<U, T>) Global(Global<U> other)  // NOLINT
      : address_(other.address()) {}

  [[nodiscard]] u64 address() const { return address_; }
  auto operator[](i64 at) const {
    const u64 address = address_ + static_cast<u64>(at) * sizeof(T);
    if constexpr (std::is_const_v<T>) {
      return emulated::read<std::remove_const_t<T>>(address);
    } else {
      return Element<T>(address);
    }
  }
  Global operator+(i64 elements) const {
    return Global(address_ + static_cast<u64>(elements) * sizeof(T), 0);
  }
  explicit operator bool() const { return address_ != 0; }
  bool operator==(std::nullptr_t) const { return address_ == 0; }

 private:
  u64 address_ = 0;
};

template <class T>
using Shared = emulated::SharedArray<T>;

#define KERNEL(name, ArgsType, threads) KERNEL_LARGE(name, ArgsType, threads, 1, 0)
#define KERNEL_RESIDENT(name, ArgsType, threads, groups) KERNEL(name, ArgsType, threads)
#define KERNEL_LARGE(name, ArgsType, threads, groups, words)        \
  inline constexpr ::sluice::kernels::u32 name##_threads = threads; \
  inline constexpr ::sluice::kernels::u32 name##_large = (words)*4; \
  inline void name(const ArgsType& args, const ::sluice::emulated::Thread& sluice_thread)
#define KERNEL_THREAD(t) [[maybe_unused]] const auto& t = sluice_thread
/// Kernels follow each other here: none starts early (dialect/cuda.h).
#define KERNEL_THREAD_EARLY(t) KERNEL_THREAD(t)
inline void wait_for_kernel_before() {}
#define SHARED(T, name, count) const ::sluice::emulated::SharedArray<T> name = sluice_thread.shared<T>(count)
#define LARGE_SHARED(name, words) \
  const ::sluice::emulated::SharedArray<::sluice::kernels::u32> name = sluice_thread.large(words)

inline void barrier(const Thread& t) {
  emulated::meet(t, emulated::Meeting::kBarrier);
}
inline void simd_barrier(const Thread& t) {
  emulated::meet(t, emulated::Meeting::kSimdBarrier);
}
template <class T>
T simd_shuffle(const Thread& t, T value, u32 lane) {
  static_assert(sizeof(T) == 4);
  return std::bit_cast<T>(emulated::meet(t, emulated::Meeting::kShuffle, std::bit_cast<u32>(value), lane));
}
template <class T>
T simd_shuffle_xor(const Thread& t, T value, u32 mask) {
  return simd_shuffle(t, value, t.lane ^ mask);
}
inline u32 simd_ballot(const Thread& t, bool value) {
  return emulated::meet(t, emulated::Meeting::kBallot, value ? 1 : 0, 0);
}
#define SLUICE_OWN_SIMD_SUM
inline f32 simd_sum(const Thread& t, f32 x) {
  return std::bit_cast<f32>(emulated::meet(t, emulated::Meeting::kSum, std::bit_cast<u32>(x), 0));
}
inline f32 simd_max(const Thread& t, f32 x) {
  return std::bit_cast<f32>(emulated::meet(t, emulated::Meeting::kMax, std::bit_cast<u32>(x), 0));
}
inline u32 shared_atomic_add(Shared<u32> at, u32 value) {
  const u32 before = at[0];
  at[0] = before + value;
  return before;
}

inline u32 bits_of_f32(f32 x) {
  return std::bit_cast<u32>(x);
}
inline f32 f32_of_bits(u32 x) {
  return std::bit_cast<f32>(x);
}
inline f32 f32_of_half(u16 x) {
  return to_float(Half{x});
}
inline u16 half_of_f32(f32 x) {
  return to_half(x).bits;
}
inline u32 count_bits(u32 x) {
  return static_cast<u32>(std::popcount(x));
}
inline f32 exp_f32(f32 x) {
  return std::exp(x);
}
inline f32 exp2_f32(f32 x) {
  return std::exp2(x);
}
inline f32 log1p_f32(f32 x) {
  return std::log1p(x);
}
inline f32 sqrt_f32(f32 x) {
  return std::sqrt(x);
}
inline f32 abs_f32(f32 x) {
  return std::fabs(x);
}
inline f32 fma_f32(f32 a, f32 b, f32 c) {
  return a * b + c;  // a contraction where the machine has one; the exact one is slow elsewhere
}
inline f32 max_f32(f32 a, f32 b) {
  return std::fmax(a, b);
}
template <class T>
T min_of(T a, T b) {
  return b < a ? b : a;
}
template <class T>
T max_of(T a, T b) {
  return a < b ? b : a;
}

struct u32x2 {
  u32 x, y;
};
struct u32x4 {
  u32 x, y, z, w;
};
struct f32x4 {
  f32 x, y, z, w;
};
template <class Wide, class T>
Wide load_wide(Global<T> from, i64 at) {
  return emulated::read<Wide, sizeof(Wide)>(from.address() + static_cast<u64>(at) * sizeof(T));
}
template <class Wide, class T>
void store_wide(Global<T> to, i64 at, Wide value) {
  emulated::write<Wide, sizeof(Wide)>(to.address() + static_cast<u64>(at) * sizeof(T), value);
}
template <class T>
u32 load1(Global<T> from, i64 at) {
  return load_wide<u32>(from, at);
}
template <class T>
u32x2 load2(Global<T> from, i64 at) {
  return load_wide<u32x2>(from, at);
}
template <class T>
u32x4 load4(Global<T> from, i64 at) {
  return load_wide<u32x4>(from, at);
}
template <class T>
f32x4 load4f(Global<T> from, i64 at) {
  return load_wide<f32x4>(from, at);
}
template <class T>
void store2(Global<T> to, i64 at, u32x2 v) {
  store_wide(to, at, v);
}
template <class T>
void store4(Global<T> to, i64 at, u32x4 v) {
  store_wide(to, at, v);
}
inline void store4f(Global<f32> to, i64 at, f32x4 v) {
  store_wide(to, at, v);
}
template <class T>
u32 load1(Shared<T> from, i64 at) {
  return from.template wide<u32>(at);
}
template <class T>
u32x2 load2(Shared<T> from, i64 at) {
  return from.template wide<u32x2>(at);
}
template <class T>
u32x4 load4(Shared<T> from, i64 at) {
  return from.template wide<u32x4>(at);
}
inline f32x4 load4f(Shared<f32> from, i64 at) {
  return from.wide<f32x4>(at);
}
template <class T>
void store2(Shared<T> to, i64 at, u32x2 v) {
  to.template set_wide<u32x2>(at, v);
}
template <class T>
void store4(Shared<T> to, i64 at, u32x4 v) {
  to.template set_wide<u32x4>(at, v);
}
inline void store4f(Shared<f32> to, i64 at, f32x4 v) {
  to.set_wide<f32x4>(at, v);
}
/// Checks that something is there.
constexpr u32 kLine = 128;
template <class T>
void fetch_line(Global<const T> from) {
  (void)static_cast<T>(from[0]);
}
template <class T, class U>
Global<T> retype(Global<U> p) {
  return Global<T>(p.address(), 0);
}
template <class T>
Global<T> global_of_bits(u64 bits) {
  return Global<T>(bits, 0);
}

inline void loads_stay() {}

struct MmaA {
  u32 r[4];
};
struct MmaB {
  u32 r[2];
};
struct MmaC {
  f32 r[4];
};
inline void mma_f16(const Thread& t, MmaC& c, const MmaA& a, const MmaB& b) {
  emulated::meet(t, emulated::Meeting::kMmaF16, emulated::MmaIn{a.r, b.r, c.r});
}
inline void mma_bf16(const Thread& t, MmaC& c, const MmaA& a, const MmaB& b) {
  emulated::meet(t, emulated::Meeting::kMmaBf16, emulated::MmaIn{a.r, b.r, c.r});
}
constexpr f32 kCodesPerHalf = 16777216.0F;
inline u32 half2_of_codes(u32 codes) {
  return codes;
}
inline u32 half2_of_bytes(u32 codes, bool times_16) {
  const u32 factor = times_16 ? 16 : 1;
  return static_cast<u32>(half_of_f32(static_cast<f32>((codes & 0xffffU) * factor))) |
         static_cast<u32>(half_of_f32(static_cast<f32>((codes >> 16) * factor))) << 16;
}
template <class T, class U>
void copy16_async(Shared<T> to, i64 to_at, Global<const U> from, i64 from_at) {
  store4(to, to_at, load4(from, from_at));
}
template <class T, class U>
void copy8_async(Shared<T> to, i64 to_at, Global<const U> from, i64 from_at) {
  store2(to, to_at, load2(from, from_at));
}
template <class T, class U>
void copy4_async(Shared<T> to, i64 to_at, Global<const U> from, i64 from_at) {
  to[to_at] = from[from_at];
}
inline void async_commit() {}
template <u32 kLeft>
void async_wait() {}

}  // namespace sluice::kernels

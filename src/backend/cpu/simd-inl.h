// What all kernels of a target share: vector types, partial vectors, sums in a fixed order, and
// transcendental functions. Included once for each Highway target.
#if defined(SLUICE_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_SIMD_INL_H_
#undef SLUICE_CPU_SIMD_INL_H_
#else
#define SLUICE_CPU_SIMD_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "hwy/highway.h"

#if defined(__clang__)
#define SLUICE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define SLUICE_UNROLL _Pragma("GCC unroll 16")
#endif

// Highway 1.0.3 looks for AVX-512 VNNI on the processor, but tells the compiler of its VEX form only.
#if HWY_TARGET == HWY_AVX3_DL
#undef HWY_TARGET_STR
#define HWY_TARGET_STR \
  HWY_TARGET_STR_AVX3  \
  ",vpclmulqdq,avx512vbmi,avx512vbmi2,vaes,avxvnni,avx512bitalg,avx512vpopcntdq,avx512vnni"
#endif

HWY_BEFORE_NAMESPACE();
namespace sluice::backend::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Of a lambda that becomes part of its caller.
#undef SLUICE_LAMBDA
#define SLUICE_LAMBDA HWY_ATTR __attribute__((always_inline))

template <class Use, int... i>
HWY_INLINE void unrolled_over(const Use& use, std::integer_sequence<int, i...>) {
  (use(std::integral_constant<int, i>()), ...);
}
/// use(i) for i = 0 .. N - 1, each i a constant. Arrays that are indexed by nothing else stay in registers,
/// which g++ does not manage for long unrolled loops.
template <int N, class Use>
HWY_INLINE void unrolled(const Use& use) {
  unrolled_over(use, std::make_integer_sequence<int, N>());
}

using DF = hn::CappedTag<float, 16>;
using DI = hn::RebindToSigned<DF>;
using DU = hn::RebindToUnsigned<DF>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
using VU = hn::Vec<DU>;
using D4 = hn::FixedTag<float, 4>;
using V4 = hn::Vec<D4>;

constexpr std::int64_t kLanes = static_cast<std::int64_t>(hn::MaxLanes(DF()));
static_assert(kLanes == 4 || kLanes == 8 || kLanes == 16);

HWY_INLINE VF load(const float* p) {
  return hn::LoadU(DF(), p);
}
HWY_INLINE void store(VF v, float* p) {
  hn::StoreU(v, DF(), p);
}
HWY_INLINE VF set(float value) {
  return hn::Set(DF(), value);
}
HWY_INLINE VF zero() {
  return hn::Zero(DF());
}

/// The first n < kLanes elements, zeros after them; reads nothing else.
HWY_INLINE VF load_part(const float* p, std::int64_t n) {
  alignas(64) float part[kLanes] = {};
  std::memcpy(part, p, static_cast<std::size_t>(n) * sizeof(float));
  return hn::Load(DF(), part);
}
HWY_INLINE void store_part(VF v, float* p, std::int64_t n) {
  alignas(64) float part[kLanes];
  hn::Store(v, DF(), part);
  std::memcpy(p, part, static_cast<std::size_t>(n) * sizeof(float));
}

/// step(i, n): for every whole vector at i with n = kLanes, then once for the rest with n < kLanes. A caller
/// uses load_n and store_n, which compile to plain loads and stores for whole vectors.
template <class Step>
HWY_INLINE void for_each_vector(std::int64_t count, const Step& step) {
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) step(i, std::integral_constant<std::int64_t, kLanes>());
  if (i < count) step(i, count - i);
}
template <class N>
HWY_INLINE VF load_n(const float* p, N n) {
  if constexpr (std::is_same_v<N, std::int64_t>) {
    return load_part(p, n);
  } else {
    return load(p);
  }
}
template <class N>
HWY_INLINE void store_n(VF v, float* p, N n) {
  if constexpr (std::is_same_v<N, std::int64_t>) {
    store_part(v, p, n);
  } else {
    store(v, p);
  }
}

/// bf16 as float32.
template <class N>
HWY_INLINE VF load_bf16_n(const std::uint16_t* p, N n) {
  const hn::Rebind<std::uint16_t, DF> d16;
  hn::Vec<decltype(d16)> v;
  if constexpr (std::is_same_v<N, std::int64_t>) {
    alignas(64) std::uint16_t part[kLanes] = {};
    std::memcpy(part, p, static_cast<std::size_t>(n) * sizeof(std::uint16_t));
    v = hn::LoadU(d16, part);
  } else {
    v = hn::LoadU(d16, p);
  }
  return hn::BitCast(DF(), hn::ShiftLeft<16>(hn::PromoteTo(DU(), v)));
}

// --- sums -----------------------------------------------------------------------------------------

template <class D, class V>
HWY_INLINE V4 fold_to_128(D d, V v) {
  if constexpr (hn::MaxLanes(D()) > 4) {
    const hn::Half<D> half;
    return fold_to_128(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  } else {
    (void)d;
    return v;
  }
}

/// The four sums of the lanes of a, b, c and e. Each is ((0 + 2) + (1 + 3)) over the lanes of a 128-bit block
/// after the blocks were added upper half to lower half: the same order whatever stands beside it.
HWY_INLINE V4 sum4(VF a, VF b, VF c, VF e) {
  const DF d;
  const hn::Repartition<std::uint64_t, DF> d64;
  const VF ab = hn::Add(hn::InterleaveLower(d, a, b), hn::InterleaveUpper(d, a, b));
  const VF ce = hn::Add(hn::InterleaveLower(d, c, e), hn::InterleaveUpper(d, c, e));
  const auto ab64 = hn::BitCast(d64, ab);
  const auto ce64 = hn::BitCast(d64, ce);
  const VF all = hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, ab64, ce64)),
                         hn::BitCast(d, hn::InterleaveUpper(d64, ab64, ce64)));
  return fold_to_128(d, all);
}
HWY_INLINE float sum(VF v) {
  return hn::GetLane(sum4(v, v, v, v));
}

/// Sum of step(i, n) over the vectors of [0, count), step giving zeros in unused lanes. Four running sums,
/// vector v going to sum v % 4, combined as (0 + 1) + (2 + 3); then sum(). A function of count alone.
template <class Step>
HWY_INLINE float sum_over(std::int64_t count, const Step& step) {
  VF s0 = zero();
  VF s1 = zero();
  VF s2 = zero();
  VF s3 = zero();
  const std::integral_constant<std::int64_t, kLanes> whole;
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= count; i += 4 * kLanes) {
    s0 = hn::Add(s0, step(i, whole));
    s1 = hn::Add(s1, step(i + kLanes, whole));
    s2 = hn::Add(s2, step(i + 2 * kLanes, whole));
    s3 = hn::Add(s3, step(i + 3 * kLanes, whole));
  }
  for (; i + kLanes <= count; i += kLanes) s0 = hn::Add(s0, step(i, whole));
  if (i < count) s1 = hn::Add(s1, step(i, count - i));
  return sum(hn::Add(hn::Add(s0, s1), hn::Add(s2, s3)));
}

HWY_INLINE float sum_of_squares(const float* x, std::int64_t count) {
  return sum_over(count, [x](std::int64_t i, auto n) HWY_ATTR {
    const VF v = load_n(x + i, n);
    return hn::Mul(v, v);
  });
}

// --- functions ------------------------------------------------------------------------------------

/// e^x to about 1 ulp; 0 below -104, infinity above 88.8; NaN stays NaN.
HWY_INLINE VF exp(VF x) {
  const DF d;
  const DI di;
  const VF clamped = hn::Min(hn::Max(x, set(-104.0F)), set(89.0F));
  const VI n = hn::NearestInt(hn::Mul(clamped, set(1.44269504F)));
  const VF nf = hn::ConvertTo(d, n);
  // ln 2 in two parts, the first exact in products with n.
  VF r = hn::NegMulAdd(nf, set(0.693359375F), clamped);
  r = hn::NegMulAdd(nf, set(-2.12194440e-4F), r);
  VF p = set(1.9875691500e-4F);
  p = hn::MulAdd(p, r, set(1.3981999507e-3F));
  p = hn::MulAdd(p, r, set(8.3334519073e-3F));
  p = hn::MulAdd(p, r, set(4.1665795894e-2F));
  p = hn::MulAdd(p, r, set(1.6666665459e-1F));
  p = hn::MulAdd(p, r, set(5.0000001201e-1F));
  p = hn::MulAdd(hn::Mul(r, r), p, r);
  p = hn::Add(p, set(1.0F));
  // 2^n in two factors, so that subnormal results and the overflow to infinity come out right.
  const VI bias = hn::Set(di, 127);
  const VI n1 = hn::ShiftRight<1>(n);
  const VI n2 = hn::Sub(n, n1);
  p = hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n1, bias))));
  p = hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(n2, bias))));
  return hn::IfThenElse(hn::IsNaN(x), x, p);
}

HWY_INLINE VF sigmoid(VF x) {
  return hn::Div(set(1.0F), hn::Add(set(1.0F), exp(hn::Neg(x))));
}

HWY_INLINE VF silu(VF x) {
  return hn::Div(x, hn::Add(set(1.0F), exp(hn::Neg(x))));
}

/// log(1 + y) for y in [0, 1], as 2 atanh(y / (2 + y)).
HWY_INLINE VF log1p_unit(VF y) {
  const VF s = hn::Div(y, hn::Add(set(2.0F), y));
  const VF z = hn::Mul(s, s);
  VF p = set(1.0F / 15);
  p = hn::MulAdd(p, z, set(1.0F / 13));
  p = hn::MulAdd(p, z, set(1.0F / 11));
  p = hn::MulAdd(p, z, set(1.0F / 9));
  p = hn::MulAdd(p, z, set(1.0F / 7));
  p = hn::MulAdd(p, z, set(1.0F / 5));
  p = hn::MulAdd(p, z, set(1.0F / 3));
  const VF twice = hn::Add(s, s);
  return hn::MulAdd(hn::Mul(twice, z), p, twice);
}

/// log(1 + e^x) = max(x, 0) + log(1 + e^-|x|); beyond 20 the second term is below half an ulp.
HWY_INLINE VF softplus(VF x) {
  const VF tail = log1p_unit(exp(hn::Neg(hn::Abs(x))));
  return hn::Add(hn::IfThenElse(hn::Gt(x, zero()), x, zero()), tail);
}

/// One value through a vector function: the same bits as in a vector.
template <class Function>
HWY_INLINE float apply(float x, const Function& function) {
  return hn::GetLane(function(set(x)));
}
HWY_INLINE float sigmoid1(float x) {
  return hn::GetLane(sigmoid(set(x)));
}

}  // namespace sluice::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

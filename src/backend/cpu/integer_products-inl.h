// Products of pairs of 16-bit integers, and what becomes of a group's sum. Included once for each Highway
// target.
#if defined(SLUICE_CPU_INTEGER_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_INTEGER_PRODUCTS_INL_H_
#undef SLUICE_CPU_INTEGER_PRODUCTS_INL_H_
#else
#define SLUICE_CPU_INTEGER_PRODUCTS_INL_H_
#endif

#include "backend/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::backend::cpu::HWY_NAMESPACE {
namespace {

/// total += the products of the codes with the inputs, in each lane: halves of words, or bytes without and
/// with a sign.
HWY_INLINE VI add_products(VI total, VI a, VI b) {
#if HWY_TARGET == HWY_AVX3_DL
  // The intrinsic makes g++ 12 copy its running sums around.
  asm("vpdpbusd %2, %1, %0" : "+v"(total.raw) : "v"(a.raw), "vm"(b.raw));
  return total;
#elif HWY_TARGET == HWY_AVX3
  return hn::Add(total, VI{_mm512_madd_epi16(a.raw, b.raw)});
#elif HWY_TARGET == HWY_AVX2
  return hn::Add(total, VI{_mm256_madd_epi16(a.raw, b.raw)});
#elif HWY_TARGET == HWY_SSE4
  return hn::Add(total, VI{_mm_madd_epi16(a.raw, b.raw)});
#elif HWY_TARGET == HWY_NEON
  const int16x8_t a16 = vreinterpretq_s16_s32(a.raw);
  const int16x8_t b16 = vreinterpretq_s16_s32(b.raw);
  const int32x4_t low = vmull_s16(vget_low_s16(a16), vget_low_s16(b16));
  const int32x4_t high = vmull_s16(vget_high_s16(a16), vget_high_s16(b16));
  return hn::Add(total, VI(vpaddq_s32(low, high)));
#else
  const auto low = [](VI v) HWY_ATTR { return hn::ShiftRight<16>(hn::ShiftLeft<16>(v)); };
  const VI products = hn::Add(hn::Mul(low(a), low(b)), hn::Mul(hn::ShiftRight<16>(a), hn::ShiftRight<16>(b)));
  return hn::Add(total, products);
#endif
}

/// sum + s (a T + b U).
HWY_INLINE VF add_group(VF sum, VI products, VF scale, VF bias, VF s, VF u) {
  return hn::MulAdd(s, hn::MulAdd(hn::ConvertTo(DF(), products), scale, hn::Mul(bias, u)), sum);
}

/// bf16 in the low or high halves of words, as float32.
HWY_INLINE VF low_bf16(VU words) {
  return hn::BitCast(DF(), hn::ShiftLeft<16>(words));
}
HWY_INLINE VF high_bf16(VU words) {
  return hn::BitCast(DF(), hn::And(words, hn::Set(DU(), 0xffff0000U)));
}

}  // namespace
}  // namespace sluice::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

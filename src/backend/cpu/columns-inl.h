// Rows of bytes to columns: the same word of as many rows as a vector has lanes, side by side.
// Included once for each Highway target.
#if defined(SLUICE_CPU_COLUMNS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_COLUMNS_INL_H_
#undef SLUICE_CPU_COLUMNS_INL_H_
#else
#define SLUICE_CPU_COLUMNS_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "backend/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::backend::cpu::HWY_NAMESPACE {
namespace {

/// 16 bytes of rows 0, 4, 8 ... from `from` on, in the vector's blocks.
HWY_INLINE VU load_blocks(const std::uint8_t* from, std::int64_t stride) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  const auto block = [&](int i) HWY_ATTR {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 4 * i * stride));
  };
  __m512i v = _mm512_castsi128_si512(block(0));
  v = _mm512_inserti32x4(v, block(1), 1);
  v = _mm512_inserti32x4(v, block(2), 2);
  return VU{_mm512_inserti32x4(v, block(3), 3)};
#elif HWY_TARGET == HWY_AVX2
  const auto block = [&](int i) HWY_ATTR {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 4 * i * stride));
  };
  return VU{_mm256_inserti128_si256(_mm256_castsi128_si256(block(0)), block(1), 1)};
#else
  static_assert(kLanes == 4);
  (void)stride;
  return hn::BitCast(DU(), hn::LoadU(hn::Repartition<std::uint8_t, DU>(), from));
#endif
}

/// Four words of kLanes rows, `stride` bytes apart: to[word][row].
HWY_INLINE void load_column_block(const std::uint8_t* from, std::int64_t stride, std::uint32_t* to) {
  const DU du;
  const hn::Repartition<std::uint64_t, DU> d64;
  const VU a = load_blocks(from, stride);
  const VU b = load_blocks(from + stride, stride);
  const VU c = load_blocks(from + 2 * stride, stride);
  const VU e = load_blocks(from + 3 * stride, stride);
  const auto ab_low = hn::BitCast(d64, hn::InterleaveLower(du, a, b));
  const auto ab_high = hn::BitCast(d64, hn::InterleaveUpper(du, a, b));
  const auto ce_low = hn::BitCast(d64, hn::InterleaveLower(du, c, e));
  const auto ce_high = hn::BitCast(d64, hn::InterleaveUpper(du, c, e));
  hn::Store(hn::BitCast(du, hn::InterleaveLower(d64, ab_low, ce_low)), du, to);
  hn::Store(hn::BitCast(du, hn::InterleaveUpper(d64, ab_low, ce_low)), du, to + kLanes);
  hn::Store(hn::BitCast(du, hn::InterleaveLower(d64, ab_high, ce_high)), du, to + 2 * kLanes);
  hn::Store(hn::BitCast(du, hn::InterleaveUpper(d64, ab_high, ce_high)), du, to + 3 * kLanes);
}

/// The rest of load_columns: word by word, and what is there of the last one.
inline HWY_NOINLINE void load_column_words(const std::uint8_t* from, std::int64_t stride, std::int64_t rows,
                                           std::int64_t bytes, std::uint32_t* to) {
  for (std::int64_t r = 0; r < kLanes; ++r) {
    const std::uint8_t* row = from + std::min(r, rows - 1) * stride;
    std::int64_t at = 0;
    for (; at + 4 <= bytes; at += 4) std::memcpy(to + at / 4 * kLanes + r, row + at, 4);
    if (at < bytes) {
      std::uint32_t word = 0;
      std::memcpy(&word, row + at, static_cast<std::size_t>(bytes - at));
      to[at / 4 * kLanes + r] = word;
    }
  }
}

/// The words of `bytes` bytes of `rows` rows: to[word][kLanes]. Rows that are missing repeat the last one,
/// bytes that are missing are zero; nothing else is read.
HWY_INLINE void load_columns(const std::uint8_t* from, std::int64_t stride, std::int64_t rows,
                             std::int64_t bytes, std::uint32_t* to) {
  constexpr std::int64_t kBlock = 16;
  std::int64_t at = 0;
  if (rows == kLanes) {
    for (; at + kBlock <= bytes; at += kBlock) load_column_block(from + at, stride, to + at / 4 * kLanes);
  }
  if (at < bytes) load_column_words(from + at, stride, rows, bytes - at, to + at / 4 * kLanes);
}

}  // namespace
}  // namespace sluice::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

// Decoders: the codes of a chunk of weights, in every stored format, to vectors of float32 weights.
// Included once for each Highway target.
#if defined(SLUICE_CPU_DECODERS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_DECODERS_INL_H_
#undef SLUICE_CPU_DECODERS_INL_H_
#else
#define SLUICE_CPU_DECODERS_INL_H_
#endif

#include <algorithm>
#include <array>
#include <cstring>

#include "backend/cpu/linear_kernels.h"
#include "backend/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::backend::cpu::HWY_NAMESPACE {
namespace {

// Unrolls the vectors of a chunk where they are few; eight would only make long code.
#undef SLUICE_UNROLL_WIDE
#if HWY_TARGET == HWY_AVX3
#define SLUICE_UNROLL_WIDE SLUICE_UNROLL
#else
#define SLUICE_UNROLL_WIDE
#endif

// --- decoders: vector j of a chunk of weights, in the format's order ---------------------------------

// Scale and bias of a group, spread over a vector.
struct Affine {
  VF scale, bias;
  // Written out: g++ builds implicit constructors without the target's attributes.
  HWY_INLINE Affine() {}
  HWY_INLINE Affine(VF scale_vector, VF bias_vector) : scale(scale_vector), bias(bias_vector) {}
};

struct F32Decoder {
  static constexpr int kBytes = 128;  // of a chunk
  static constexpr bool kGrouped = false;
  static constexpr Order kOrder = Order::kNatural;
  struct Group {};
  HWY_INLINE Group group(float, float) const { return {}; }
  HWY_INLINE VF vec(const std::uint8_t* chunk, const Group&, int j) const {
    return load(reinterpret_cast<const float*>(chunk) + j * kLanes);
  }
};

struct Bf16Decoder {
  static constexpr int kBytes = 64;
  static constexpr bool kGrouped = false;
  static constexpr Order kOrder = Order::kNatural;
  struct Group {};
  HWY_INLINE Group group(float, float) const { return {}; }
  HWY_INLINE VF vec(const std::uint8_t* chunk, const Group&, int j) const {
    const std::integral_constant<std::int64_t, kLanes> whole;
    return load_bf16_n(reinterpret_cast<const std::uint16_t*>(chunk) + j * kLanes, whole);
  }
};

struct Q8Decoder {
  static constexpr int kBytes = 32;
  static constexpr bool kGrouped = true;
  static constexpr Order kOrder = Order::kNatural;
  using Group = Affine;
  HWY_INLINE Group group(float scale, float bias) const { return {set(scale), set(bias)}; }
  HWY_INLINE VF vec(const std::uint8_t* chunk, const Group& g, int j) const {
    const hn::Rebind<std::uint8_t, DF> d8;
    const VI q = hn::PromoteTo(DI(), hn::LoadU(d8, chunk + j * kLanes));
    return hn::MulAdd(hn::ConvertTo(DF(), q), g.scale, g.bias);
  }
};

#undef SLUICE_TABLES
#if HWY_TARGET == HWY_AVX3
#define SLUICE_TABLES 1
// A permutation looks at the low four bits of a lane only, so codes index a group's table of sixteen weights
// without being masked or converted.
HWY_INLINE VF look_up(VF table, VU index) {
  return hn::TableLookupLanes(table, hn::Indices512<float>{index.raw});
}
#elif HWY_TARGET == HWY_AVX2
#define SLUICE_TABLES 1
// The same with the low three bits and tables of eight.
HWY_INLINE VF look_up(VF table, VU index) {
  return hn::TableLookupLanes(table, hn::Indices256<float>{index.raw});
}
#else
#define SLUICE_TABLES 0
#endif

// w[i] = codes[i] * scale + bias for the vector of code values in `codes`.
HWY_INLINE VF table_of(const float* codes, float scale, float bias) {
  return hn::MulAdd(hn::Load(DF(), codes), set(scale), set(bias));
}

class Q4Decoder {
 public:
  static constexpr int kBytes = 16;
  static constexpr bool kGrouped = true;
  static constexpr Order kOrder = Order::kNibbles;
#if HWY_TARGET == HWY_AVX3
  using Group = VF;
  HWY_INLINE Group group(float scale, float bias) const {
    return table_of(codes_, scale, bias);
  }
#else
  using Group = Affine;
  HWY_INLINE Group group(float scale, float bias) const {
    return {set(scale), set(bias)};
  }
#endif

  HWY_INLINE Q4Decoder() {
    for (int i = 0; i < 32; ++i) shifts_[i] = 4U * static_cast<std::uint32_t>(i / 4);
    for (int i = 0; i < kLanes; ++i) codes_[i] = static_cast<float>(i);
  }

  HWY_INLINE VF vec(const std::uint8_t* chunk, const Group& g, int j) const {
    const DU du;
    const VU words = hn::LoadDup128(du, reinterpret_cast<const std::uint32_t*>(chunk));
    const VU q = hn::Shr(words, hn::Load(du, shifts_ + j * kLanes));
#if HWY_TARGET == HWY_AVX3
    return look_up(g, q);
#else
    const VI code = hn::BitCast(DI(), hn::And(q, hn::Set(du, 15)));
    return hn::MulAdd(hn::ConvertTo(DF(), code), g.scale, g.bias);
#endif
  }

 private:
  alignas(64) std::uint32_t shifts_[32];
  alignas(64) float codes_[kLanes];
};

// Two and three bits: the words of a chunk's upper bits alternate over the lanes.
template <bool kThreeBits>
class LowBitDecoder {
 public:
  static constexpr int kBytes = kThreeBits ? 12 : 8;
  static constexpr bool kGrouped = true;
  static constexpr Order kOrder = Order::kLowBits;
#if SLUICE_TABLES
  using Group = VF;
#else
  using Group = Affine;
#endif

  HWY_INLINE LowBitDecoder() {
    for (unsigned i = 0; i < 32; ++i) {
      const unsigned byte = i / 8;
      const unsigned p = i / 2 % 4;
      shifts_[i] = 8 * byte + 2 * p;
      low_shifts_[i] = 8 * byte + 4 * (i % 2) + p;
    }
    for (unsigned i = 0; i < kLanes; ++i) {
      codes_[i] =
          kThreeBits ? 2.0F * static_cast<float>(i % 8) + 0.5F : 4.0F * static_cast<float>(i % 4) + 1.5F;
    }
  }

  HWY_INLINE Group group(float scale, float bias) const {
#if SLUICE_TABLES
    return table_of(codes_, scale, bias);
#else
    return {set(scale), set(bias)};
#endif
  }

  HWY_INLINE VF vec(const std::uint8_t* chunk, const Group& g, int j) const {
    const DU du;
    const hn::Repartition<std::uint64_t, DU> d64;
    std::uint64_t words;
    std::memcpy(&words, chunk, sizeof words);
    const VU both = hn::BitCast(du, hn::Set(d64, words));
    VU q = hn::Shr(both, hn::Load(du, shifts_ + j * kLanes));
    if constexpr (kThreeBits) {
      std::uint32_t low;
      std::memcpy(&low, chunk + 8, sizeof low);
      const VU bit =
          hn::And(hn::Shr(hn::Set(du, low), hn::Load(du, low_shifts_ + j * kLanes)), hn::Set(du, 1));
      q = hn::And(q, hn::Set(du, 3));
      q = hn::Or(hn::Add(q, q), bit);
    }
#if SLUICE_TABLES
    return look_up(g, q);
#else
    const VI code = hn::BitCast(DI(), hn::And(q, hn::Set(du, kThreeBits ? 7 : 3)));
    const VF value = hn::MulAdd(hn::ConvertTo(DF(), code), set(kThreeBits ? 2.0F : 4.0F),
                                set(kThreeBits ? 0.5F : 1.5F));  // exact
    return hn::MulAdd(value, g.scale, g.bias);
#endif
  }

 private:
  alignas(64) std::uint32_t shifts_[32];
  alignas(64) std::uint32_t low_shifts_[32];
  alignas(64) float codes_[kLanes];
};

// --- scales -----------------------------------------------------------------------------------------

// Where the groups of a block lie.
struct BlockGroups {
  std::int64_t first;   // group of the block's first chunk
  std::int64_t count;   // groups the block touches
  std::int64_t chunks;  // chunks a group
  std::int64_t head;    // chunks of the first group that lie in the block
};

constexpr std::int64_t kMaxGroups = kBlockChunks;

HWY_INLINE BlockGroups groups_of(const Matrix& w, std::int64_t chunk, std::int64_t chunks) {
  const std::int64_t per_group = w.group / kChunk;
  const std::int64_t first = chunk / per_group;
  return {first, (chunk + chunks - 1) / per_group - first + 1, per_group, per_group - chunk % per_group};
}

// bf16 to float32, four at a time.
HWY_INLINE void load_scales(const std::uint16_t* from, std::int64_t count, float* to) {
  const D4 d4;
  const hn::Rebind<std::uint32_t, D4> du4;
  const hn::Rebind<std::uint16_t, D4> d16;
  std::int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    const auto v = hn::PromoteTo(du4, hn::LoadU(d16, from + i));
    hn::StoreU(hn::BitCast(d4, hn::ShiftLeft<16>(v)), d4, to + i);
  }
  for (; i < count; ++i) {
    const std::uint32_t bits = std::uint32_t{from[i]} << 16;
    std::memcpy(to + i, &bits, sizeof bits);
  }
}

}  // namespace
}  // namespace sluice::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

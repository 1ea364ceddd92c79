// Words of codes to pairs of 16-bit integers. Included once for each Highway target.
#if defined(SLUICE_CPU_UNPACK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_UNPACK_INL_H_
#undef SLUICE_CPU_UNPACK_INL_H_
#else
#define SLUICE_CPU_UNPACK_INL_H_
#endif

#include <array>

#include "backend/cpu/linear_kernels.h"
#include "backend/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::backend::cpu::HWY_NAMESPACE {
namespace {

HWY_INLINE VU load_words(const std::uint32_t* p) {
  return hn::LoadU(DU(), p);
}
HWY_INLINE VU load_words(const std::uint8_t* p) {
  return hn::BitCast(DU(), hn::LoadU(hn::Repartition<std::uint8_t, DU>(), p));
}

/// Codes go to bytes where four of them are multiplied at once, else to halves of words. Inputs are then
/// split into a high and a low byte, and their sums joined: 256 high + low.
constexpr bool kByteCodes = HWY_TARGET == HWY_AVX3_DL;
constexpr int kHalves = kByteCodes ? 2 : 1;
constexpr std::uint32_t code_mask(std::uint32_t code) {
  return kByteCodes ? code * 0x01010101U : code * 0x00010001U;
}

// An unpacker gives the codes that words hold, spread over bytes or halves of words:
//   words(at, use)      use(m, codes) for the fields m of kLanes neighbouring words of one output at `at`
//   columns(words, use) use(k, codes) for the kChunkVectors fields of a chunk; `words` are the chunk's, each
//   for
//                       kLanes outputs
// Code q stands for kMul q + kAdd.
constexpr int kChunkVectors = static_cast<int>(kChunk / 2) / kHalves;

/// Fields of kBits bits.
template <int kBits>
struct UnpackFields {
  static constexpr int kPairs = 16 / kBits;            // of inputs, of a word
  static constexpr int kFields = kPairs / kHalves;     // vectors of codes
  static constexpr std::int64_t kWords = 16 / kPairs;  // of a chunk, for the columns
  static constexpr std::int64_t kVectorBytes = kLanes * 4;

  template <int m>
  static HWY_INLINE VU field(VU words) {
    if constexpr (kFields == 1) return words;
    return hn::And(hn::ShiftRight<m * kBits>(words), hn::Set(DU(), code_mask((1U << kBits) - 1)));
  }
  template <class Use>
  static HWY_INLINE void words(const std::uint8_t* at, const Use& use) {
    const VU v = load_words(at);
    unrolled<kFields>([&](auto m) SLUICE_LAMBDA { use(m, field<m>(v)); });
  }
  template <class Use>
  static HWY_INLINE void columns(const std::uint32_t* words, const Use& use) {
    unrolled<kChunkVectors>(
        [&](auto k) SLUICE_LAMBDA { use(k, field<k % kFields>(load_words(words + k / kFields * kLanes))); });
  }
};

struct UnpackQ4 : UnpackFields<4> {
  static constexpr float kMul = 1, kAdd = 0;
};
struct UnpackQ8 : UnpackFields<8> {
  static constexpr float kMul = 1, kAdd = 0;
};
struct UnpackQ2 : UnpackFields<2> {
  static constexpr float kMul = 4, kAdd = 1.5F;
};

/// Which words of the chunks in two vectors are upper bits, and which the low bits that belong to them. The
/// second vector begins half a vector after the first.
struct ThreeBitWords {
  alignas(64) std::int32_t upper[2][kLanes];
  alignas(64) std::int32_t low[2][kLanes];
  alignas(64) std::uint32_t shift[kLanes];
  alignas(64) std::uint32_t upper_first[kLanes];  // all ones where the first vector has the word
  alignas(64) std::uint32_t low_first[kLanes];
  constexpr ThreeBitWords() : upper(), low(), shift(), upper_first(), low_first() {
    for (int i = 0; i < kLanes; ++i) {
      const int lanes = static_cast<int>(kLanes);
      const int up = 3 * (i / 2) + i % 2;
      const int down = 3 * (i / 2) + 2;
      // AVX-512 picks from both at once: there the first index goes on into the second vector.
      const bool at_once = lanes == 16;
      upper[0][i] = up < lanes ? up : at_once ? up + lanes / 2 : 0;
      upper[1][i] = up < lanes ? 0 : up - lanes / 2;
      low[0][i] = down < lanes ? down : at_once ? down + lanes / 2 : 0;
      low[1][i] = down < lanes ? 0 : down - lanes / 2;
      upper_first[i] = up < lanes ? ~0U : 0;
      low_first[i] = down < lanes ? ~0U : 0;
      shift[i] = 4U * static_cast<unsigned>(i % 2);
    }
  }
};

/// A chunk is two words of upper bits, fields as of UnpackQ2, and one of low bits: in each byte those of
/// field p of word t at 4 t + p.
struct UnpackQ3 {
  static constexpr float kMul = 2, kAdd = 0.5F;
  static constexpr int kPairs = 8;
  static constexpr int kFields = kPairs / kHalves;
  static constexpr std::int64_t kWords = 3;
  static constexpr std::int64_t kVectorBytes = kLanes * 6;

  /// `low` is moved so that t no longer matters.
  template <int m>
  static HWY_INLINE VU field(VU upper, VU low) {
    const DU du;
    const VU ones = hn::Set(du, code_mask(1));
    VU doubled;
    if constexpr (m == 0) {
      doubled = hn::Add(upper, upper);
    } else {
      doubled = hn::ShiftRight<2 * m - 1>(upper);
    }
    const VU bit = hn::ShiftRight<8 * (m / 4) + m % 4>(low);
    const VU joined = hn::Or(hn::And(ones, bit), hn::AndNot(ones, doubled));
    return hn::And(joined, hn::Set(du, code_mask(7)));
  }
  template <class Use>
  static HWY_INLINE void words(const std::uint8_t* at, const Use& use) {
    static constexpr ThreeBitWords kWordsOf;
    const DU du;
    const VU first = load_words(at);
    const VU second = load_words(at + kLanes * 2);
    const auto pick = [&](const std::int32_t(&index)[2][kLanes],
                          const std::uint32_t* in_first) SLUICE_LAMBDA {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
      (void)in_first;
      return VU{_mm512_permutex2var_epi32(first.raw, _mm512_load_si512(index[0]), second.raw)};
#else
      const VU a = hn::TableLookupLanes(first, hn::SetTableIndices(du, index[0]));
      const VU b = hn::TableLookupLanes(second, hn::SetTableIndices(du, index[1]));
      return hn::IfThenElse(hn::MaskFromVec(hn::Load(du, in_first)), a, b);
#endif
    };
    const VU upper = pick(kWordsOf.upper, kWordsOf.upper_first);
    const VU low = hn::Shr(pick(kWordsOf.low, kWordsOf.low_first), hn::Load(du, kWordsOf.shift));
    unrolled<kFields>([&](auto m) SLUICE_LAMBDA { use(m, field<m>(upper, low)); });
  }
  template <class Use>
  static HWY_INLINE void columns(const std::uint32_t* words, const Use& use) {
    const VU low = load_words(words + 2 * kLanes);
    unrolled<kChunkVectors>([&](auto k) SLUICE_LAMBDA {
      constexpr int t = k / kFields;
      use(k, field<k % kFields>(load_words(words + t * kLanes), hn::ShiftRight<4 * t>(low)));
    });
  }
};

/// Which two inputs of a chunk pair k holds, the low and the high half.
using PairInputs = std::array<std::array<std::uint8_t, 2>, kChunk / 2>;

constexpr PairInputs pair_inputs(Order order) {
  PairInputs out{};
  for (std::uint8_t k = 0; k < out.size(); ++k) {
    if (order == Order::kNibbles) {  // word w, nibbles n and n + 4
      const auto first = static_cast<std::uint8_t>(8 * (k / 4) + k % 4);
      out[k] = {first, static_cast<std::uint8_t>(first + 4)};
    } else if (order == Order::kNatural) {  // word w, bytes n and n + 2
      const auto first = static_cast<std::uint8_t>(4 * (k / 2) + k % 2);
      out[k] = {first, static_cast<std::uint8_t>(first + 2)};
    } else {  // word t, fields n and n + 8; field 4 b + p holds input 16 t + 8 (p % 2) + 2 b + p / 2
      const int t = k / 8;
      const int b = k % 8 / 4;
      const int p = k % 4;
      const auto first = static_cast<std::uint8_t>(16 * t + 8 * (p % 2) + 2 * b + p / 2);
      out[k] = {first, static_cast<std::uint8_t>(first + 4)};
    }
  }
  return out;
}

}  // namespace
}  // namespace sluice::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

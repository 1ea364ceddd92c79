// Few rows: a vector holds neighbouring words of one output's codes. Included once for each Highway target.
#if defined(SLUICE_CPU_INTEGER_FEW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_INTEGER_FEW_INL_H_
#undef SLUICE_CPU_INTEGER_FEW_INL_H_
#else
#define SLUICE_CPU_INTEGER_FEW_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "backend/cpu/integer_kernels.h"
#include "backend/cpu/integer_products-inl.h"
#include "backend/cpu/simd-inl.h"
#include "backend/cpu/unpack-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::backend::cpu::HWY_NAMESPACE {
namespace {

// --- a group's words to its sum ------------------------------------------------------------------------

constexpr int kBlocks = static_cast<int>(kLanes / 4);  // of four lanes, in a vector

/// Blocks 0, 2 of a and b plus blocks 1, 3.
HWY_INLINE VI add_neighbours(VI a, VI b) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  return hn::Add(VI{_mm512_shuffle_i32x4(a.raw, b.raw, _MM_SHUFFLE(2, 0, 2, 0))},
                 VI{_mm512_shuffle_i32x4(a.raw, b.raw, _MM_SHUFFLE(3, 1, 3, 1))});
#elif HWY_TARGET == HWY_AVX2
  const DI d;
  return hn::Add(hn::ConcatLowerLower(d, b, a), hn::ConcatUpperUpper(d, b, a));
#else
  return hn::Add(a, b);
#endif
}

/// Vectors of products, by number: of an array in memory.
struct StoredProducts {
  const std::int32_t* from;
  HWY_INLINE VI operator()(int i) const { return hn::Load(DI(), from + i * kLanes); }
};

/// Groups kBlocks i ... of products [groups][kWords], a group a block, the words of a group added up to four.
template <int kWords, class Products>
HWY_INLINE VI group_blocks(const Products& products, int i) {
  if constexpr (kWords == 4) {
    return products(i);
  } else if constexpr (kWords == 8) {
    return add_neighbours(products(2 * i), products(2 * i + 1));
  } else {
    VI half[2];
    for (int j = 0; j < 2; ++j) {
      const VI a = products(4 * i + 2 * j);
      const VI b = products(4 * i + 2 * j + 1);
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
      half[j] = hn::Add(hn::ConcatLowerLower(DI(), b, a), hn::ConcatUpperUpper(DI(), b, a));
#else
      half[j] = hn::Add(a, b);
#endif
    }
    return add_neighbours(half[0], half[1]);
  }
}

/// Lane 4 b + i of sum_groups holds group kBlocks i + b: here for a vector of groups in ascending order.
struct GroupOrder {
  alignas(64) std::int32_t lane[kLanes];
  constexpr GroupOrder() : lane() {
    for (int g = 0; g < kLanes; ++g) lane[g] = 4 * (g % kBlocks) + g / kBlocks;
  }
};

/// Sums of the words of kLanes groups.
template <int kWords, class Products>
HWY_INLINE VI sum_groups(const Products& products) {
  static constexpr GroupOrder kOrder;
  const DI d;
  const hn::Repartition<std::int64_t, DI> d64;
  const VI v0 = group_blocks<kWords>(products, 0);
  const VI v1 = group_blocks<kWords>(products, 1);
  const VI v2 = group_blocks<kWords>(products, 2);
  const VI v3 = group_blocks<kWords>(products, 3);
  const auto v01 = hn::BitCast(d64, hn::Add(hn::InterleaveLower(d, v0, v1), hn::InterleaveUpper(d, v0, v1)));
  const auto v23 = hn::BitCast(d64, hn::Add(hn::InterleaveLower(d, v2, v3), hn::InterleaveUpper(d, v2, v3)));
  const VI all = hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, v01, v23)),
                         hn::BitCast(d, hn::InterleaveUpper(d64, v01, v23)));
  return kBlocks == 1 ? all : hn::TableLookupLanes(all, hn::SetTableIndices(d, kOrder.lane));
}

/// The same for groups of any number of words.
HWY_INLINE VI sum_groups_of(std::int64_t count, const std::int32_t* words) {
  switch (count) {
    case 4:
      return sum_groups<4>(StoredProducts{words});
    case 8:
      return sum_groups<8>(StoredProducts{words});
    case 16:
      return sum_groups<16>(StoredProducts{words});
    default:
      break;
  }
  alignas(64) std::int32_t sums[kLanes];
  for (std::int64_t g = 0; g < kLanes; ++g) {
    std::int32_t sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += words[g * count + i];
    sums[g] = sum;
  }
  return hn::Load(DI(), sums);
}

// --- a row of codes ------------------------------------------------------------------------------------

/// kLanes scales from `from`, of which `count` belong to the row; zeros for the others. Those behind a row's
/// end are read where they are another row's, `inside`.
HWY_INLINE VF load_row_scales(const std::uint16_t* from, std::int64_t count, bool inside) {
  const std::integral_constant<std::int64_t, kLanes> whole;
  if (count >= kLanes) return load_bf16_n(from, whole);
  if (count <= 0) return zero();
  if (!inside) return load_bf16_n(from, count);
  return hn::IfThenElseZero(hn::FirstN(DF(), static_cast<std::size_t>(count)), load_bf16_n(from, whole));
}

/// A vector of codes of which only `bytes` are there.
struct CodesTail {
  alignas(64) std::uint8_t bytes[kLanes * 6];
};

constexpr std::int64_t kMostGroupWords = 64;  // a group of 256 bytes

/// Products of the words of a vector at `codes` with R rows: to(r, products). pairs [kPairs][R][kLanes].
template <class Unpack, int R, class To>
HWY_INLINE void vector_products(const std::uint8_t* codes, const std::int32_t* pairs, const To& to) {
  const DI di;
  VI sums[R];
  unrolled<R>([&](auto r) SLUICE_LAMBDA { sums[r] = hn::Zero(di); });
  Unpack::words(codes, [&](auto n, VU words) SLUICE_LAMBDA {
    unrolled<R>([&](auto r) SLUICE_LAMBDA {
      sums[r] = add_products(sums[r], hn::BitCast(di, words), hn::Load(di, pairs + (n * R + r) * kLanes));
    });
  });
  unrolled<R>([&](auto r) SLUICE_LAMBDA { to(r, sums[r]); });
}

template <class Unpack>
HWY_INLINE VF weigh(VF scale, VF& bias) {
  if constexpr (Unpack::kMul == 1) return scale;
  bias = hn::MulAdd(scale, set(Unpack::kAdd), bias);
  return hn::Mul(scale, set(Unpack::kMul));
}

template <class Unpack, int R>
HWY_NOINLINE void few_rows(const Matrix& w, std::int64_t first, std::int64_t last, const IntegerRows& x,
                           float* const* y) {
  constexpr int kVectors = static_cast<int>(kSums / kLanes);  // of an output's sums
  constexpr std::int64_t kStride = kSums * kMostGroupWords + kLanes;
  // Groups of 64 and one row, where time goes: products stay in registers.
  constexpr int kUsualWords = 32 / Unpack::kPairs;
  const std::int64_t groups = x.groups();
  const std::int64_t padded_groups = (groups + kSums - 1) / kSums * kSums;
  const std::int64_t group_words = x.group / 2 / Unpack::kPairs;
  const std::int64_t vectors = (x.words() + kLanes - 1) / kLanes;
  const std::int64_t row_bytes = w.row_bytes();
  alignas(64) std::int32_t products[R * kStride];
  std::memset(products, 0, sizeof products);  // also where there are no groups
  for (std::int64_t o = first; o < last; ++o) {
    const std::uint8_t* row = reinterpret_cast<const std::uint8_t*>(w.data.address()) + o * row_bytes;
    const std::uint16_t* scales = w.scales.address() + o * groups;
    const std::uint16_t* biases = w.biases.address() + o * groups;
    const bool inside = o + 1 < w.out;
    VF total[R * kVectors];
    unrolled<R * kVectors>([&](auto i) SLUICE_LAMBDA { total[i] = zero(); });
    for (std::int64_t g = 0; g < groups; g += kSums) {
      const std::int64_t vector = g * group_words / kLanes;
      const std::uint8_t* codes = row + vector * Unpack::kVectorBytes;
      const std::int32_t* pairs = x.pairs + vector * Unpack::kPairs * R * kLanes;
      if constexpr (R == 1 && kLanes == 16) {
        if (group_words == kUsualWords && g + kSums <= groups) {
          VI in_registers[kUsualWords];
          unrolled<kUsualWords>([&](auto v) SLUICE_LAMBDA {
            vector_products<Unpack, 1>(codes + v * Unpack::kVectorBytes, pairs + v * Unpack::kPairs * kLanes,
                                       [&](auto, VI sums) SLUICE_LAMBDA { in_registers[v] = sums; });
          });
          const VI sums =
              sum_groups<kUsualWords>([&](int i) SLUICE_LAMBDA -> const VI& { return in_registers[i]; });
          const std::integral_constant<std::int64_t, kLanes> whole;
          VF bias = load_bf16_n(biases + g, whole);
          const VF scale = weigh<Unpack>(load_bf16_n(scales + g, whole), bias);
          total[0] = add_group(total[0], sums, scale, bias, load(x.scales + g), load(x.sums + g));
          continue;
        }
      }
      const std::int64_t count = std::min(vectors - vector, kSums * group_words / kLanes);
      for (std::int64_t v = 0; v < count; ++v) {
        CodesTail tail;
        const std::uint8_t* at = codes + v * Unpack::kVectorBytes;
        if (!inside && at + Unpack::kVectorBytes > row + row_bytes) {
          std::memset(tail.bytes, 0, sizeof tail.bytes);
          std::memcpy(tail.bytes, at, static_cast<std::size_t>(row + row_bytes - at));
          at = tail.bytes;
        }
        vector_products<Unpack, R>(at, pairs + v * Unpack::kPairs * R * kLanes,
                                   [&](auto r, VI sums) SLUICE_LAMBDA {
                                     hn::Store(sums, DI(), products + r * kStride + v * kLanes);
                                   });
      }
      unrolled<kVectors>([&](auto v) SLUICE_LAMBDA {
        const std::int64_t at = g + v * kLanes;
        VF bias = load_row_scales(biases + at, groups - at, inside);
        const VF scale = weigh<Unpack>(load_row_scales(scales + at, groups - at, inside), bias);
        unrolled<R>([&](auto r) SLUICE_LAMBDA {
          const VI sums = sum_groups_of(group_words, products + r * kStride + v * kLanes * group_words);
          const std::int64_t group = r * padded_groups + at;
          VF& sum = total[r * kVectors + v];
          sum = add_group(sum, sums, scale, bias, load(x.scales + group), load(x.sums + group));
        });
      });
    }
    unrolled<R>([&](auto r) SLUICE_LAMBDA {
      VF sums = total[r * kVectors];
      if constexpr (kVectors == 2) sums = hn::Add(sums, total[r * kVectors + 1]);
      if constexpr (kVectors == 4) {
        sums = hn::Add(hn::Add(sums, total[r * kVectors + 2]),
                       hn::Add(total[r * kVectors + 1], total[r * kVectors + 3]));
      }
      alignas(16) float four[4];
      hn::Store(fold_to_128(DF(), sums), D4(), four);
      if (r < x.rows) y[r][o] = (four[0] + four[2]) + (four[1] + four[3]);
    });
  }
}

}  // namespace
}  // namespace sluice::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

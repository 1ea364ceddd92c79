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

constexpr int kBlocks = static_cast<int>(kLanes / 4);  // of four lanes, in a vector

/// Codes of kBlocks groups of N blocks each, from row to column: vector q then holds block q of each group.
template <int N>
HWY_INLINE void block_columns([[maybe_unused]] VU* v) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  const auto even = [](VU a, VU b) SLUICE_LAMBDA { return VU{_mm512_shuffle_i32x4(a.raw, b.raw, 0x88)}; };
  const auto odd = [](VU a, VU b) SLUICE_LAMBDA { return VU{_mm512_shuffle_i32x4(a.raw, b.raw, 0xdd)}; };
  if constexpr (N == 2) {
    const VU first = even(v[0], v[1]);
    v[1] = odd(v[0], v[1]);
    v[0] = first;
  } else if constexpr (N == 4) {
    const DU d;
    const VU low01 = hn::ConcatLowerLower(d, v[1], v[0]);
    const VU low23 = hn::ConcatLowerLower(d, v[3], v[2]);
    const VU high01 = hn::ConcatUpperUpper(d, v[1], v[0]);
    const VU high23 = hn::ConcatUpperUpper(d, v[3], v[2]);
    v[0] = even(low01, low23);
    v[1] = odd(low01, low23);
    v[2] = even(high01, high23);
    v[3] = odd(high01, high23);
  }
#elif HWY_TARGET == HWY_AVX2
  const DU d;
  const auto pair = [d](VU& a, VU& b) SLUICE_LAMBDA {
    const VU low = hn::ConcatLowerLower(d, b, a);
    b = hn::ConcatUpperUpper(d, b, a);
    a = low;
  };
  if constexpr (N == 2) pair(v[0], v[1]);
  if constexpr (N == 4) {  // two vectors a group
    pair(v[0], v[2]);
    pair(v[1], v[3]);
    const VU second = v[2];
    v[2] = v[1];
    v[1] = second;
  }
#endif
}

/// Lane 4 b + i of sum_blocks holds group kBlocks i + b: here for a vector of groups in ascending order.
struct GroupOrder {
  alignas(64) std::int32_t lane[kLanes];
  constexpr GroupOrder() : lane() {
    for (int g = 0; g < kLanes; ++g) lane[g] = 4 * (g % kBlocks) + g / kBlocks;
  }
};

/// Sums of kLanes groups in ascending order, from the blocks of the first kBlocks groups, the next, ...
HWY_INLINE VI sum_blocks(VI v0, VI v1, VI v2, VI v3) {
  static constexpr GroupOrder kOrder;
  const DI d;
  const hn::Repartition<std::int64_t, DI> d64;
  const auto v01 = hn::BitCast(d64, hn::Add(hn::InterleaveLower(d, v0, v1), hn::InterleaveUpper(d, v0, v1)));
  const auto v23 = hn::BitCast(d64, hn::Add(hn::InterleaveLower(d, v2, v3), hn::InterleaveUpper(d, v2, v3)));
  const VI all = hn::Add(hn::BitCast(d, hn::InterleaveLower(d64, v01, v23)),
                         hn::BitCast(d, hn::InterleaveUpper(d64, v01, v23)));
  return kBlocks == 1 ? all : hn::TableLookupLanes(all, hn::SetTableIndices(d, kOrder.lane));
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

/// What a group's scale and bias are for its codes.
template <class Unpack>
HWY_INLINE VF weigh(VF scale, VF& bias) {
  if constexpr (Unpack::kMul == 1) return scale;
  bias = hn::MulAdd(scale, set(Unpack::kAdd), bias);
  return hn::Mul(scale, set(Unpack::kMul));
}

constexpr int kSumVectors = static_cast<int>(kSums / kLanes);  // of an output

/// The sum of an output's kSums sums.
HWY_INLINE float add_sums_of(const VF* sums) {
  VF all = sums[0];
  if constexpr (kSumVectors == 2) all = hn::Add(all, sums[1]);
  if constexpr (kSumVectors == 4) all = hn::Add(hn::Add(all, sums[2]), hn::Add(sums[1], sums[3]));
  alignas(16) float four[4];
  hn::Store(fold_to_128(DF(), all), D4(), four);
  return (four[0] + four[2]) + (four[1] + four[3]);
}

// --- groups of 64, where time goes -----------------------------------------------------------------------

/// Rows [at, at + N) of R, of an output whose codes start at `row`. Codes and scales may be read up to a
/// multiple of kBlocks groups, and of kLanes.
template <class Unpack, int R, int N>
HWY_INLINE void usual_output(const std::uint8_t* row, const std::uint16_t* scales,
                             const std::uint16_t* biases, const IntegerRows& x, int at, VF* totals) {
  constexpr int kWords = 32 / Unpack::kPairs;  // of a group
  constexpr int kBlockVectors = kWords / 4;    // of codes, for kBlocks groups
  constexpr int kCodeVectors = kBlockVectors * Unpack::kFields;
  const DI di;
  const std::int64_t groups = x.groups();
  const std::int32_t* pairs = x.pairs + at * kLanes;
  unrolled<N * kSumVectors>([&](auto i) SLUICE_LAMBDA { totals[i] = zero(); });
  for (std::int64_t g = 0; g < groups; g += kSums) {
    unrolled<kSumVectors>([&](auto v) SLUICE_LAMBDA {
      const std::int64_t from = g + v * kLanes;
      VI blocks[N * 4];
      unrolled<4>([&](auto i) SLUICE_LAMBDA {
        if (from + i * kBlocks >= groups) {
          unrolled<N>([&](auto r) SLUICE_LAMBDA { blocks[r * 4 + i] = hn::Zero(di); });
          return;
        }
        VI codes[kCodeVectors];
        if constexpr (kBlockVectors == 1) {
          Unpack::words(row, [&](auto m, VU field) SLUICE_LAMBDA { codes[m] = hn::BitCast(di, field); });
        } else {
          VU words[kBlockVectors];
          unrolled<kBlockVectors>(
              [&](auto j) SLUICE_LAMBDA { words[j] = load_words(row + j * Unpack::kVectorBytes); });
          block_columns<kBlockVectors>(words);
          unrolled<kCodeVectors>([&](auto k) SLUICE_LAMBDA {
            constexpr int m = k % Unpack::kFields;
            codes[k] = hn::BitCast(di, Unpack::template field<m>(words[k / Unpack::kFields]));
          });
        }
        unrolled<N>([&](auto r) SLUICE_LAMBDA {
          // One row alone would wait for its own sums, unless the halves of its inputs have a sum each.
          constexpr int kChains = N == 1 && !kByteCodes ? 2 : kHalves;
          VI sums[kChains];
          unrolled<kChains>([&](auto c) SLUICE_LAMBDA { sums[c] = hn::Zero(di); });
          unrolled<kCodeVectors * kHalves>([&](auto k) SLUICE_LAMBDA {
            constexpr int c = k % kChains;
            sums[c] = add_products(sums[c], codes[k / kHalves], hn::Load(di, pairs + (k * R + r) * kLanes));
          });
          if constexpr (kByteCodes) sums[0] = hn::ShiftLeft<8>(sums[0]);
          blocks[r * 4 + i] = kChains == 1 ? sums[0] : hn::Add(sums[0], sums[kChains - 1]);
        });
        row += kBlockVectors * Unpack::kVectorBytes;
        pairs += kCodeVectors * kHalves * R * kLanes;
      });
      VF bias = load_row_scales(biases + from, groups - from, true);
      const VF scale = weigh<Unpack>(load_row_scales(scales + from, groups - from, true), bias);
      unrolled<N>([&](auto r) SLUICE_LAMBDA {
        const VI sums = sum_blocks(blocks[r * 4], blocks[r * 4 + 1], blocks[r * 4 + 2], blocks[r * 4 + 3]);
        const std::int64_t group = (at + r) * x.all_groups() + from;
        VF& total = totals[r * kSumVectors + v];
        total = add_group(total, sums, scale, bias, load(x.scales + group), load(x.sums + group));
      });
    });
  }
}

template <class Unpack, int R>
HWY_NOINLINE void usual_rows(const Matrix& w, std::int64_t first, std::int64_t last, const IntegerRows& x,
                             float* const* y) {
  // As many rows at once as leave registers for the codes.
  constexpr int kAtOnce = kLanes == 16 ? (R <= 4 ? R : R / 2) : (R % 2 == 0 ? 2 : 1);
  const std::int64_t groups = x.groups();
  const std::int64_t row_bytes = w.row_bytes();
  for (std::int64_t o = first; o < last; ++o) {
    const std::uint8_t* row = reinterpret_cast<const std::uint8_t*>(w.data.address()) + o * row_bytes;
    const std::uint16_t* scales = w.scales.address() + o * groups;
    const std::uint16_t* biases = w.biases.address() + o * groups;
    for (int at = 0; at < R; at += kAtOnce) {
      VF totals[kAtOnce * kSumVectors];
      usual_output<Unpack, R, kAtOnce>(row, scales, biases, x, at, totals);
      unrolled<kAtOnce>([&](auto r) SLUICE_LAMBDA {
        if (at + r < x.rows) y[at + r][o] = add_sums_of(totals + r * kSumVectors);
      });
    }
  }
}

// --- groups of any length ----------------------------------------------------------------------------

template <class Unpack>
HWY_NOINLINE void any_rows(const Matrix& w, std::int64_t first, std::int64_t last, const IntegerRows& x,
                           float* const* y) {
  constexpr std::int64_t kMostWords = 64;  // of a group: 256 codes of 8 bits
  const DI di;
  const std::int64_t groups = x.groups();
  const std::int64_t group_words = x.group / 2 / Unpack::kPairs;
  const std::int64_t vectors = (x.words() + kLanes - 1) / kLanes;
  const std::int64_t row_bytes = w.row_bytes();
  alignas(64) std::int32_t products[kSums * kMostWords + kLanes];
  std::memset(products, 0, sizeof products);  // also where there are no groups
  for (std::int64_t o = first; o < last; ++o) {
    const std::uint8_t* row = reinterpret_cast<const std::uint8_t*>(w.data.address()) + o * row_bytes;
    for (std::int64_t r = 0; r < x.rows; ++r) {
      VF totals[kSumVectors];
      unrolled<kSumVectors>([&](auto i) SLUICE_LAMBDA { totals[i] = zero(); });
      for (std::int64_t g = 0; g < groups; g += kSums) {
        const std::int64_t vector = g * group_words / kLanes;
        const std::int64_t count = std::min(vectors - vector, kSums * group_words / kLanes);
        for (std::int64_t v = vector; v < vector + count; ++v) {
          alignas(64) std::uint8_t tail[Unpack::kVectorBytes] = {};
          const auto there =
              static_cast<std::size_t>(std::min(Unpack::kVectorBytes, row_bytes - v * Unpack::kVectorBytes));
          std::memcpy(tail, row + v * Unpack::kVectorBytes, there);
          const std::int32_t* pairs = x.pairs + (v * Unpack::kPairs * x.tile + r) * kLanes;
          VI sums[kHalves];
          unrolled<kHalves>([&](auto h) SLUICE_LAMBDA { sums[h] = hn::Zero(di); });
          Unpack::words(tail, [&](auto m, VU codes) SLUICE_LAMBDA {
            unrolled<kHalves>([&](auto h) SLUICE_LAMBDA {
              sums[h] = add_products(sums[h], hn::BitCast(di, codes),
                                     hn::Load(di, pairs + (m * kHalves + h) * x.tile * kLanes));
            });
          });
          if constexpr (kByteCodes) sums[0] = hn::Add(hn::ShiftLeft<8>(sums[0]), sums[1]);
          hn::Store(sums[0], di, products + (v - vector) * kLanes);
        }
        unrolled<kSumVectors>([&](auto v) SLUICE_LAMBDA {
          const std::int64_t from = g + v * kLanes;
          alignas(64) std::int32_t sums[kLanes];
          for (std::int64_t i = 0; i < kLanes; ++i) {
            sums[i] = 0;
            for (std::int64_t k = 0; k < group_words; ++k)
              sums[i] += products[(v * kLanes + i) * group_words + k];
          }
          VF bias = load_row_scales(w.biases.address() + o * groups + from, groups - from, false);
          const VF scale = weigh<Unpack>(
              load_row_scales(w.scales.address() + o * groups + from, groups - from, false), bias);
          const std::int64_t group = r * x.all_groups() + from;
          totals[v] = add_group(totals[v], hn::Load(di, sums), scale, bias, load(x.scales + group),
                                load(x.sums + group));
        });
      }
      y[r][o] = add_sums_of(totals);
    }
  }
}

/// The outputs of a matrix whose rows may be read beyond their end without leaving the matrix, and by how
/// much.
struct Inside {
  std::int64_t outputs, code_bytes, scales;
};

template <class Unpack>
HWY_INLINE Inside inside(const Matrix& w) {
  const std::int64_t groups = w.in / w.group;
  const auto before_end = [&](std::int64_t beyond, std::int64_t row) {
    return beyond <= 0 ? w.out : w.out - (beyond + row - 1) / row;
  };
  const std::int64_t block_bytes = 8 / Unpack::kPairs * Unpack::kVectorBytes;  // kBlocks groups
  const std::int64_t code_bytes = (groups + kBlocks - 1) / kBlocks * block_bytes;
  const std::int64_t scales = (groups + kLanes - 1) / kLanes * kLanes;
  const std::int64_t outputs =
      std::min(before_end(code_bytes - w.row_bytes(), w.row_bytes()), before_end(scales - groups, groups));
  return {std::max<std::int64_t>(outputs, 0), code_bytes, scales};
}

template <class Unpack, int R>
HWY_INLINE void few_rows(const Matrix& w, std::int64_t first, std::int64_t last, const IntegerRows& x,
                         float* const* y, float* scratch) {
  if (w.group != 64) return any_rows<Unpack>(w, first, last, x, y);
  const Inside in = inside<Unpack>(w);
  const std::int64_t end = std::clamp(in.outputs, first, last);
  if (first < end) usual_rows<Unpack, R>(w, first, end, x, y);
  // The others one by one, copied to where there is room behind them.
  const std::int64_t groups = x.groups();
  auto* codes = reinterpret_cast<std::byte*>(scratch);
  auto* scales = reinterpret_cast<std::uint16_t*>(codes + in.code_bytes);
  std::uint16_t* biases = scales + in.scales;
  for (std::int64_t o = end; o < last; ++o) {
    std::memset(scratch, 0, static_cast<std::size_t>(in.code_bytes + 4 * in.scales));
    const auto row_bytes = static_cast<std::size_t>(w.row_bytes());
    std::memcpy(codes, w.data.address() + o * w.row_bytes(), row_bytes);
    std::memcpy(scales, w.scales.address() + o * groups, static_cast<std::size_t>(groups) * 2);
    std::memcpy(biases, w.biases.address() + o * groups, static_cast<std::size_t>(groups) * 2);
    Matrix one = w;
    one.out = 1;
    one.data = Dev<const std::byte>(codes);
    one.scales = Dev<const std::uint16_t>(scales);
    one.biases = Dev<const std::uint16_t>(biases);
    float* to[kFewRows];
    for (std::int64_t r = 0; r < x.rows; ++r) to[r] = y[r] + o;
    usual_rows<Unpack, R>(one, 0, 1, x, to);
  }
}

}  // namespace
}  // namespace sluice::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

// Many rows: a vector holds the same word of neighbouring outputs' codes, unpacked once for all rows.
// Included once for each Highway target.
#if defined(SLUICE_CPU_INTEGER_MANY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_CPU_INTEGER_MANY_INL_H_
#undef SLUICE_CPU_INTEGER_MANY_INL_H_
#else
#define SLUICE_CPU_INTEGER_MANY_INL_H_
#endif

#include <algorithm>
#include <cstring>

#include "backend/cpu/columns-inl.h"
#include "backend/cpu/integer_kernels.h"
#include "backend/cpu/integer_products-inl.h"
#include "backend/cpu/simd-inl.h"
#include "backend/cpu/unpack-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::backend::cpu::HWY_NAMESPACE {
namespace {

constexpr int kPanelTiles = static_cast<int>(std::min<std::int64_t>(2, kIntegerOutputs / kLanes));
constexpr std::int64_t kPassOutputs = kPanelTiles * kLanes;
/// Inputs of a block, whose weights are unpacked together: as many whole groups as fit, at least one.
constexpr std::int64_t kBlockInputs = 256;
constexpr std::int64_t kBlockGroups = kBlockInputs / 32;

/// Scratch of a pass over kPanelTiles tiles of kLanes outputs.
struct Panel {
  std::int32_t* weights;       // [kBlockInputs / 2][kPanelTiles][kLanes]
  float* sums;                 // [kSums][kMostIntegerRows][kPanelTiles][kLanes]
  std::uint32_t* words;        // [kBlockInputs / 4 + 4][kLanes]
  std::uint32_t* scale_words;  // [kBlockGroups / 2 + 1][kLanes]
  float* scales;               // [kBlockGroups + 1][kPanelTiles][kLanes]
  float* biases;
};
constexpr std::int64_t kSumStride = kMostIntegerRows * kPassOutputs;

HWY_INLINE Panel panel_of(float* scratch) {
  Panel p;
  const auto take = [&scratch](std::int64_t words) {
    float* at = scratch;
    scratch += words;
    return at;
  };
  p.weights = reinterpret_cast<std::int32_t*>(take(kBlockInputs / 2 * kPassOutputs));
  p.sums = take(kSums * kSumStride);
  p.words = reinterpret_cast<std::uint32_t*>(take((kBlockInputs / 4 + 4) * kLanes));
  p.scale_words = reinterpret_cast<std::uint32_t*>(take((kBlockGroups / 2 + 1) * kLanes));
  p.scales = take((kBlockGroups + 1) * kPassOutputs);
  p.biases = take((kBlockGroups + 1) * kPassOutputs);
  return p;
}
static_assert(kBlockInputs / 2 * kPassOutputs + kSums * kSumStride + (kBlockInputs / 4 + 4) * kLanes +
                  (kBlockGroups / 2 + 1) * kLanes + 2 * (kBlockGroups + 1) * kPassOutputs <=
              kIntegerScratch);

/// Groups [first, first + count).
struct GroupBlock {
  std::int64_t first, count;
};

/// Tile t of a panel: the codes, scales and biases of a block for kLanes outputs from `output` on.
template <class Unpack>
HWY_INLINE void unpack_tile(const Matrix& w, std::int64_t output, const GroupBlock& block, int t,
                            const Panel& p) {
  const DF d;
  const std::int64_t groups = w.in / w.group;
  const std::int64_t rows = std::min<std::int64_t>(kLanes, w.out - output);
  const std::int64_t group_chunks = w.group / kChunk;
  const auto* codes = reinterpret_cast<const std::uint8_t*>(w.data.address()) + output * w.row_bytes();
  constexpr std::int64_t kChunkBytes = Unpack::kWords * 4;
  load_columns(codes + block.first * group_chunks * kChunkBytes, w.row_bytes(), rows,
               block.count * group_chunks * kChunkBytes, p.words);
  std::int32_t* to = p.weights + t * kLanes;
  for (std::int64_t c = 0; c < block.count * group_chunks; ++c) {
    Unpack::columns(p.words + c * Unpack::kWords * kLanes, [&](auto k, VU field) SLUICE_LAMBDA {
      hn::Store(hn::BitCast(DI(), field), DI(), to + k * kPassOutputs);
    });
    to += kChunkVectors * kPassOutputs;
  }
  const auto spread = [&](const std::uint16_t* from, float* into) HWY_ATTR {
    load_columns(reinterpret_cast<const std::uint8_t*>(from + output * groups + block.first), groups * 2,
                 rows, block.count * 2, p.scale_words);
    for (std::int64_t g = 0; g < block.count; g += 2) {
      const VU both = load_words(p.scale_words + g / 2 * kLanes);
      hn::Store(low_bf16(both), d, into + g * kPassOutputs);
      hn::Store(high_bf16(both), d, into + (g + 1) * kPassOutputs);
    }
  };
  spread(w.scales.address(), p.scales + t * kLanes);
  spread(w.biases.address(), p.biases + t * kLanes);
  if constexpr (Unpack::kMul != 1) {
    for (std::int64_t g = 0; g < block.count; ++g) {
      float* scale = p.scales + g * kPassOutputs + t * kLanes;
      float* bias = p.biases + g * kPassOutputs + t * kLanes;
      const VF s = hn::Load(d, scale);
      hn::Store(hn::MulAdd(s, set(Unpack::kAdd), hn::Load(d, bias)), d, bias);
      hn::Store(hn::Mul(s, set(Unpack::kMul)), d, scale);
    }
  }
}

/// sums[r][t] += a group's part, or = where it is the first; weights [count][kPanelTiles][kLanes], pairs
/// [count][R].
template <int R>
HWY_INLINE void panel_group(const std::int32_t* weights, std::int64_t count, const std::int32_t* pairs,
                            const float* scales, const float* biases, const float* s, const float* u,
                            bool is_first, float* sums) {
  const DF d;
  const DI di;
  // As many rows at once as leave registers for the weights.
  constexpr int kAtOnce = kLanes == 16 ? R : R % 4 == 0 ? 4 : R % 3 == 0 ? 3 : 2;
  for (int first = 0; first < R; first += kAtOnce) {
    VI products[kAtOnce * kPanelTiles];
    unrolled<kAtOnce * kPanelTiles>([&](auto i) SLUICE_LAMBDA { products[i] = hn::Zero(di); });
    for (int half = 0; half < kHalves; ++half) {
      if (half > 0) {
        unrolled<kAtOnce * kPanelTiles>([&](auto i)
                                            SLUICE_LAMBDA { products[i] = hn::ShiftLeft<8>(products[i]); });
      }
      const std::int32_t* w = weights;
      const std::int32_t* in = pairs + half * R + first;
      for (std::int64_t k = 0; k < count; ++k) {
        VI codes[kPanelTiles];
        unrolled<kPanelTiles>([&](auto t) SLUICE_LAMBDA { codes[t] = hn::Load(di, w + t * kLanes); });
        unrolled<kAtOnce>([&](auto r) SLUICE_LAMBDA {
          const VI x = hn::Set(di, in[r]);
          unrolled<kPanelTiles>([&](auto t) SLUICE_LAMBDA {
            constexpr int i = r * kPanelTiles + t;
            products[i] = add_products(products[i], codes[t], x);
          });
        });
        w += kPassOutputs;
        in += kHalves * R;
      }
    }
    unrolled<kPanelTiles>([&](auto t) SLUICE_LAMBDA {
      const VF scale = hn::Load(d, scales + t * kLanes);
      const VF bias = hn::Load(d, biases + t * kLanes);
      unrolled<kAtOnce>([&](auto r) SLUICE_LAMBDA {
        float* at = sums + ((first + r) * kPanelTiles + t) * kLanes;
        const VF before = is_first ? zero() : hn::Load(d, at);
        hn::Store(add_group(before, products[r * kPanelTiles + t], scale, bias, set(s[first + r]),
                            set(u[first + r])),
                  d, at);
      });
    });
  }
}

template <int R>
HWY_NOINLINE void panel_rows(const Panel& p, const GroupBlock& block, const IntegerRows& x) {
  const std::int64_t group_pairs = x.group / 2;
  for (std::int64_t row = 0; row < x.rows; row += R) {
    for (std::int64_t g = 0; g < block.count; ++g) {
      const std::int64_t group = block.first + g;
      const std::int64_t at = row * x.groups() + group * R;
      panel_group<R>(p.weights + g * group_pairs / kHalves * kPassOutputs, group_pairs / kHalves,
                     x.pairs + at * group_pairs, p.scales + g * kPassOutputs, p.biases + g * kPassOutputs,
                     x.scales + at, x.sums + at, group < kSums,
                     p.sums + group % kSums * kSumStride + row * kPassOutputs);
    }
  }
}

/// Adds the sums of each output of `rows` rows into sum 0: i and i + 8, then i and i + 4, 2, 1. Sums beyond
/// `groups` were never set: they are zero.
HWY_INLINE void add_sums(const Panel& p, std::int64_t rows, std::int64_t groups) {
  const DF d;
  for (std::int64_t i = 0; i < rows * kPassOutputs; i += kLanes) {
    VF sums[kSums];
    for (int k = 0; k < kSums; ++k) sums[k] = k < groups ? hn::Load(d, p.sums + k * kSumStride + i) : zero();
    for (int half = kSums / 2; half > 0; half /= 2) {
      for (int k = 0; k < half; ++k) sums[k] = hn::Add(sums[k], sums[k + half]);
    }
    hn::Store(sums[0], d, p.sums + i);
  }
}

template <class Unpack>
HWY_NOINLINE void many_rows(const Matrix& w, std::int64_t first, std::int64_t last, const IntegerRows& x,
                            float* const* y, float* scratch) {
  const Panel p = panel_of(scratch);
  const std::int64_t groups = x.groups();
  const std::int64_t block_groups = std::max<std::int64_t>(kBlockInputs / x.group, 1);
  for (std::int64_t o = first; o < last; o += kPassOutputs) {
    // The last tiles are moved back to be whole ones; only what is asked for is written.
    std::int64_t at[kPanelTiles];
    for (int t = 0; t < kPanelTiles; ++t) {
      at[t] = std::max<std::int64_t>(std::min(o + t * kLanes, w.out - kLanes), 0);
    }
    for (std::int64_t begin = 0; begin < groups; begin += block_groups) {
      const GroupBlock block{begin, std::min(block_groups, groups - begin)};
      for (int t = 0; t < kPanelTiles; ++t) unpack_tile<Unpack>(w, at[t], block, t, p);
      switch (x.tile) {
        case 6:
          panel_rows<6>(p, block, x);
          break;
        case 8:
          panel_rows<8>(p, block, x);
          break;
        case 10:
          panel_rows<10>(p, block, x);
          break;
        default:
          panel_rows<kMostTileRows>(p, block, x);
          break;
      }
    }
    add_sums(p, x.rows, groups);
    for (int t = 0; t < kPanelTiles; ++t) {
      const std::int64_t from = o + t * kLanes;
      const std::int64_t count = std::min<std::int64_t>(kLanes, last - from);
      for (std::int64_t r = 0; r < x.rows && count > 0; ++r) {
        std::memcpy(y[r] + from, p.sums + r * kPassOutputs + t * kLanes + (from - at[t]),
                    static_cast<std::size_t>(count) * sizeof(float));
      }
    }
  }
}

}  // namespace
}  // namespace sluice::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

#include "backend/cpu/integer_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#define HWY_WANT_AVX3_DL
#include "base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/integer_kernels.cpp"
#include "hwy/foreach_target.h"
//
#include "backend/cpu/integer_few-inl.h"
#include "backend/cpu/integer_many-inl.h"
#include "backend/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::backend::cpu::HWY_NAMESPACE {
namespace {

template <class Unpack>
void range(const Matrix& w, std::int64_t first, std::int64_t last, const IntegerRows& x, float* const* y,
           float* scratch) {
  if (!x.few) return many_rows<Unpack>(w, first, last, x, y, scratch);
  switch (x.tile) {
    case 1:
      return few_rows<Unpack, 1>(w, first, last, x, y, scratch);
    case 2:
      return few_rows<Unpack, 2>(w, first, last, x, y, scratch);
    case 3:
      return few_rows<Unpack, 3>(w, first, last, x, y, scratch);
    default:
      return few_rows<Unpack, kFewRows>(w, first, last, x, y, scratch);
  }
}

constexpr float kLargestInput = 127 * 256 + 127;  // so that both bytes have a sign

/// Rounded inputs i with the inputs that go to the high halves, i + 2 or i + 4, where they are low halves.
template <Order order>
HWY_INLINE void join_pairs(VI first, [[maybe_unused]] VI next, std::uint32_t* to) {
  const DU du;
  VI high;
  if constexpr (order == Order::kNatural) {
    high = hn::Shuffle1032(first);
  } else if constexpr (kLanes == 4) {
    high = next;
  } else {
    high = hn::SwapAdjacentBlocks(first);
  }
  const VU low = hn::And(hn::BitCast(du, first), hn::Set(du, 0xffffU));
  hn::Store(hn::Or(low, hn::ShiftLeft<16>(hn::BitCast(du, high))), du, to);
}

/// The high and low bytes of 16 rounded inputs, four to a word: word by word the fields of its codes.
template <Order order>
HWY_INLINE void split_bytes([[maybe_unused]] VI v, [[maybe_unused]] std::uint32_t* high,
                            [[maybe_unused]] std::uint32_t* low) {
#if HWY_TARGET == HWY_AVX3_DL
  const VI rounded = hn::ShiftRight<8>(hn::Add(v, hn::Set(DI(), 128)));
  const auto store = [](VI bytes, std::uint32_t* to) SLUICE_LAMBDA {
    __m128i packed = _mm512_cvtepi32_epi8(bytes.raw);
    if constexpr (order == Order::kNibbles) {
      packed = _mm_shuffle_epi8(packed, _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15));
    } else if constexpr (order == Order::kLowBits) {
      packed = _mm_shuffle_epi8(packed, _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15));
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), packed);
  };
  store(rounded, high);
  store(v, low);  // what is left of v is its low byte, taken as signed
#endif
}

constexpr std::int64_t kHalfWords = 64;  // of `joined`, where inputs are split

/// A group of inputs as integers, their pairs or bytes in `joined`, and their sums by lane; `scale` is NaN if
/// an input is not finite.
template <Order order>
HWY_INLINE VI round_group(const float* in, std::int64_t count, std::uint32_t* joined, float& scale) {
  const DF d;
  VF most = zero();
  VF odd = zero();
  for (std::int64_t i = 0; i < count; i += kLanes) {
    const VF v = load(in + i);
    most = hn::Max(most, hn::Abs(v));
    odd = hn::MulAdd(v, zero(), odd);  // 0, or NaN
  }
  VI total = hn::Zero(DI());
  const float largest = hn::GetLane(hn::MaxOfLanes(d, most));
  const bool finite = sum(odd) == 0;
  // Below this scale and reciprocal would leave the normal numbers; so small a group counts as zeros.
  if (!finite || largest < 4e-34F) {
    std::fill_n(joined, 256, 0U);
    scale = finite ? 0.0F : std::nanf("");
    return total;
  }
  const VF inverse = set(kLargestInput / largest);
  const auto rounded = [&](std::int64_t i)
                           SLUICE_LAMBDA { return hn::NearestInt(hn::Mul(load(in + i), inverse)); };
  for (std::int64_t i = 0; i < count; i += 2 * kLanes) {  // a group is a multiple of 32
    const VI a = rounded(i);
    const VI b = rounded(i + kLanes);
    if constexpr (kByteCodes) {
      split_bytes<order>(a, joined + i / 4, joined + kHalfWords + i / 4);
      split_bytes<order>(b, joined + (i + kLanes) / 4, joined + kHalfWords + (i + kLanes) / 4);
    } else {
      join_pairs<order>(a, b, joined + i);
      join_pairs<order>(b, b, joined + i + kLanes);
    }
    total = hn::Add(total, hn::Add(a, b));
  }
  scale = largest / kLargestInput;
  return total;
}

/// Where pair n of word d of a row lies in `pairs`, and where four words from a multiple of four on begin.
HWY_INLINE std::int64_t pair_index(const IntegerRows& x, std::int64_t pairs, std::int64_t row,
                                   std::int64_t word, std::int64_t n) {
  if (!x.few) {
    const std::int64_t tile = row / x.tile;
    return (tile * x.in / 2 + word * pairs + n) * x.tile + row % x.tile;
  }
  std::int64_t vector = word / kLanes;
  std::int64_t lane = word % kLanes;
  if (x.group == 64) {  // as block_columns arranges the codes
    const std::int64_t group_words = 32 / pairs;
    const std::int64_t group = word / group_words;
    const std::int64_t in_group = word % group_words;
    vector = group / kBlocks * (group_words / 4) + in_group / 4;
    lane = group % kBlocks * 4 + in_group % 4;
  }
  return ((vector * pairs + n) * x.tile + row) * kLanes + lane;
}
HWY_INLINE std::int64_t group_index(const IntegerRows& x, std::int64_t row, std::int64_t group) {
  if (x.few) return row * x.all_groups() + group;
  return (row / x.tile * x.groups() + group) * x.tile + row % x.tile;
}

/// Zeros behind the last word and the last group of a row.
HWY_INLINE void pad_row(const IntegerRows& x, std::int64_t pairs, std::int64_t row) {
  if (!x.few) return;
  for (std::int64_t word = x.words(); word < x.all_words(); ++word) {
    for (std::int64_t n = 0; n < pairs; ++n) x.pairs[pair_index(x, pairs, row, word, n)] = 0;
  }
  for (std::int64_t group = x.groups(); group < x.all_groups(); ++group) {
    x.scales[group_index(x, row, group)] = 0;
    x.sums[group_index(x, row, group)] = 0;
  }
}

template <Order order>
HWY_NOINLINE void quantise(const float* x, std::int64_t first, std::int64_t last, const IntegerRows& to,
                           std::int64_t row) {
  static constexpr PairInputs kInputs = pair_inputs(order);
  constexpr std::int64_t kPairs = word_pairs(order);
  // Word after word, the pairs that lie side by side in `to`.
  constexpr std::int64_t kWords = kChunk / 2 / kPairs;
  for (std::int64_t g = first; g < last; ++g) {
    alignas(64) std::uint32_t joined[256];
    const VI total =
        round_group<order>(x + g * to.group, to.group, joined, to.scales[group_index(to, row, g)]);
    to.sums[group_index(to, row, g)] = static_cast<float>(hn::GetLane(hn::SumOfLanes(DI(), total)));
    for (std::int64_t c = 0; c < to.group; c += kChunk) {
      const std::int64_t word = (g * to.group + c) / 2 / kPairs;
      const auto pair = [&](std::size_t w, std::size_t n) SLUICE_LAMBDA {
        if constexpr (kByteCodes) {
          constexpr std::size_t kFields = kPairs / 2;
          return static_cast<std::int32_t>(joined[n % 2 * static_cast<std::size_t>(kHalfWords) +
                                                  static_cast<std::size_t>(c) / 4 + w * kFields + n / 2]);
        } else {
          return static_cast<std::int32_t>(joined[c + kInputs[w * kPairs + n][0]]);
        }
      };
      if (to.few) {
        constexpr std::int64_t kSide = std::min<std::int64_t>(kWords, 4);  // words side by side
        for (std::int64_t w = 0; w < kWords; w += kSide) {
          std::int32_t* at = to.pairs + pair_index(to, kPairs, row, word + w, 0);
          unrolled<kPairs>([&](auto n) SLUICE_LAMBDA {
            unrolled<kSide>([&](auto i) SLUICE_LAMBDA {
              at[n * to.tile * kLanes + i] = pair(static_cast<std::size_t>(w + i), n);
            });
          });
        }
      } else {
        std::int32_t* at = to.pairs + pair_index(to, kPairs, row, word, 0);
        unrolled<kChunk / 2>([&](auto k) SLUICE_LAMBDA { at[k * to.tile] = pair(k / kPairs, k % kPairs); });
      }
    }
  }
  if (last == to.groups()) pad_row(to, kPairs, row);
}

}  // namespace

void integer_range(const Matrix& w, std::int64_t first, std::int64_t last, const IntegerRows& x,
                   float* const* y, float* scratch) {
  switch (w.format) {
    case Format::kQ4:
      return range<UnpackQ4>(w, first, last, x, y, scratch);
    case Format::kQ8:
      return range<UnpackQ8>(w, first, last, x, y, scratch);
    case Format::kQ3:
      return range<UnpackQ3>(w, first, last, x, y, scratch);
    case Format::kQ2:
      return range<UnpackQ2>(w, first, last, x, y, scratch);
    case Format::kF32:
    case Format::kBf16:
      break;  // never called with them
  }
}

void quantise_groups(const float* x, std::int64_t first, std::int64_t last, const IntegerRows& to,
                     std::int64_t row) {
  switch (to.order) {
    case Order::kNatural:
      return quantise<Order::kNatural>(x, first, last, to, row);
    case Order::kNibbles:
      return quantise<Order::kNibbles>(x, first, last, to, row);
    case Order::kLowBits:
      return quantise<Order::kLowBits>(x, first, last, to, row);
  }
}

void copy_integer_row(const IntegerRows& from, const IntegerRows& to, std::int64_t row) {
  const std::int64_t pairs = word_pairs(to.order);
  const std::int64_t words = from.words();
  if (to.few) {
    const std::int64_t vectors = from.all_words() / kLanes * pairs;
    for (std::int64_t v = 0; v < vectors; ++v) {
      std::memcpy(to.pairs + (v * to.tile + row) * kLanes, from.pairs + v * kLanes,
                  kLanes * sizeof(std::int32_t));
    }
  } else {
    for (std::int64_t word = 0; word < words; word += 4) {
      const std::int64_t count = std::min<std::int64_t>(4, words - word);
      for (std::int64_t n = 0; n < pairs; ++n) {
        const std::int32_t* source = from.pairs + pair_index(from, pairs, 0, word, n);
        std::int32_t* target = to.pairs + pair_index(to, pairs, row, word, n);
        for (std::int64_t i = 0; i < count; ++i) target[i * pairs * to.tile] = source[i];
      }
    }
  }
  for (std::int64_t g = 0; g < from.groups(); ++g) {
    to.scales[group_index(to, row, g)] = from.scales[group_index(from, 0, g)];
    to.sums[group_index(to, row, g)] = from.sums[group_index(from, 0, g)];
  }
  pad_row(to, pairs, row);
}

void clear_integer_row(const IntegerRows& to, std::int64_t row) {
  const std::int64_t pairs = word_pairs(to.order);
  for (std::int64_t word = 0; word < to.words(); ++word) {
    for (std::int64_t n = 0; n < pairs; ++n) to.pairs[pair_index(to, pairs, row, word, n)] = 0;
  }
  for (std::int64_t g = 0; g < to.groups(); ++g) {
    to.scales[group_index(to, row, g)] = 0;
    to.sums[group_index(to, row, g)] = 0;
  }
  pad_row(to, pairs, row);
}

std::int64_t integer_lanes() {
  return kLanes;
}

}  // namespace sluice::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::backend::cpu {

HWY_EXPORT(integer_range);
HWY_EXPORT(quantise_groups);
HWY_EXPORT(copy_integer_row);
HWY_EXPORT(clear_integer_row);
HWY_EXPORT(integer_lanes);

void integer_range(const Matrix& w, std::int64_t first, std::int64_t last, const IntegerRows& x,
                   float* const* y, float* scratch) {
  HWY_DYNAMIC_DISPATCH(integer_range)(w, first, last, x, y, scratch);
}
void quantise_groups(const float* x, std::int64_t first, std::int64_t last, const IntegerRows& to,
                     std::int64_t row) {
  HWY_DYNAMIC_DISPATCH(quantise_groups)(x, first, last, to, row);
}
void copy_integer_row(const IntegerRows& from, const IntegerRows& to, std::int64_t row) {
  HWY_DYNAMIC_DISPATCH(copy_integer_row)(from, to, row);
}
void clear_integer_row(const IntegerRows& to, std::int64_t row) {
  HWY_DYNAMIC_DISPATCH(clear_integer_row)(to, row);
}

IntegerRows integer_rows(Order order, std::int64_t rows, std::int64_t in, std::int64_t group) {
  IntegerRows out;
  out.rows = rows;
  out.in = in;
  out.group = group;
  out.order = order;
  out.few = rows <= kFewRows;
  out.lanes = HWY_DYNAMIC_DISPATCH(integer_lanes)();
  out.tile = rows;
  if (!out.few) {  // tiles of equal size, of those that kernels are compiled for
    const std::int64_t tiles = (rows + kMostTileRows - 1) / kMostTileRows;
    out.tile = std::max<std::int64_t>((rows + tiles - 1) / tiles, 6);
    out.tile += out.tile % 2;
  }
  return out;
}

std::int64_t integer_targets() {
  return HWY_TARGETS;
}

}  // namespace sluice::backend::cpu
#endif  // HWY_ONCE

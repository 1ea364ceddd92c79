#include "backend/cpu/select_kernels.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/select_kernels.cpp"
#include "hwy/foreach_target.h"
//
#include "backend/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::backend::cpu::HWY_NAMESPACE {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Position of the largest element above -infinity, or -1.
std::int64_t argmax_or_none(const float* x, std::int64_t count) {
  const DI di;
  VF best = set(kMinusInfinity);
  VI where = hn::Set(di, -1);
  VI at = hn::Iota(di, 0);
  const VI step = hn::Set(di, static_cast<std::int32_t>(kLanes));
  std::int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const VF v = load(x + i);
    const auto larger = hn::Gt(v, best);  // false for NaN
    best = hn::IfThenElse(larger, v, best);
    where = hn::IfThenElse(hn::RebindMask(di, larger), at, where);
    at = hn::Add(at, step);
  }
  alignas(64) float values[kLanes];
  alignas(64) std::int32_t places[kLanes];
  hn::Store(best, DF(), values);
  hn::Store(where, di, places);
  float top = kMinusInfinity;
  std::int64_t place = -1;
  for (std::int64_t lane = 0; lane < kLanes; ++lane) {
    if (places[lane] < 0) continue;
    if (values[lane] > top || (values[lane] == top && places[lane] < place)) {
      top = values[lane];
      place = places[lane];
    }
  }
  for (; i < count; ++i) {
    if (x[i] > top) {
      top = x[i];
      place = i;
    }
  }
  return place;
}

}  // namespace

std::int64_t argmax(const float* x, std::int64_t count) {
  const std::int64_t place = argmax_or_none(x, count);
  if (place >= 0) return place;
  for (std::int64_t i = 0; i < count; ++i) {
    if (!std::isnan(x[i])) return i;
  }
  return 0;
}

void router_row(const float* logits, std::int64_t n, std::int64_t k, bool renormalise, float* scratch,
                std::uint32_t* index, float* weight) {
  std::copy_n(logits, n, scratch);
  const std::int64_t chosen = std::min(n, k);
  constexpr float kTaken = std::numeric_limits<float>::quiet_NaN();
  for (std::int64_t i = 0; i < chosen; ++i) {
    std::int64_t best = argmax_or_none(scratch, n);
    if (best < 0) {
      // Only -infinity and NaN are left, in this order; what was taken must not be met again.
      const auto is_taken = [&](std::int64_t j) {
        return std::find(index, index + i, static_cast<std::uint32_t>(j)) != index + i;
      };
      for (std::int64_t j = 0; best < 0 && j < n; ++j) {
        if (!std::isnan(logits[j]) && !is_taken(j)) best = j;
      }
      for (std::int64_t j = 0; best < 0 && j < n; ++j) {
        if (std::isnan(logits[j]) && !is_taken(j)) best = j;
      }
    }
    index[i] = static_cast<std::uint32_t>(best);
    scratch[best] = kTaken;
  }
  if (chosen == 0) return;
  const float max = logits[index[0]];  // NaN only if every logit is
  // e^(x - max); NaN counts nothing, and an infinite maximum gives its equals 1.
  const auto power = [max](VF x) HWY_ATTR {
    const VF top = set(max);
    const VF below = hn::IfThenZeroElse(hn::Eq(x, top), hn::Sub(x, top));
    return hn::IfThenZeroElse(hn::IsNaN(x), exp(below));
  };
  for (std::int64_t i = 0; i < chosen; ++i) weight[i] = logits[index[i]];
  double total = 0;
  if (!renormalise) {
    total = sum_over(n, [=](std::int64_t i, auto lanes) HWY_ATTR {
      const VF e = power(load_n(logits + i, lanes));
      const auto used = hn::FirstN(DF(), static_cast<std::size_t>(lanes));
      return hn::IfThenElseZero(used, e);
    });
  }
  for_each_vector(chosen, [=](std::int64_t i, auto lanes)
                              HWY_ATTR { store_n(power(load_n(weight + i, lanes)), weight + i, lanes); });
  if (renormalise) {
    for (std::int64_t i = 0; i < chosen; ++i) total += static_cast<double>(weight[i]);
  }
  for (std::int64_t i = 0; i < chosen; ++i) {
    weight[i] = total > 0 ? static_cast<float>(static_cast<double>(weight[i]) / total) : 0.0F;
  }
}

namespace {

// Unsigned keys in the order of selection: larger is earlier, equal values (also 0 and -0) equal, NaN 0.
void make_keys(const float* scores, std::int64_t count, std::uint32_t* keys) {
  const DU du;
  const VU sign = hn::Set(du, 0x80000000U);
  for_each_vector(count, [=](std::int64_t i, auto n) HWY_ATTR {
    const VF v = hn::Add(load_n(scores + i, n), zero());  // -0 becomes 0
    const VU bits = hn::BitCast(du, v);
    const VU negative = hn::BitCast(du, hn::BroadcastSignBit(hn::BitCast(DI(), bits)));
    const VU key = hn::Xor(bits, hn::Or(negative, sign));
    const VU ordered = hn::IfThenZeroElse(hn::RebindMask(du, hn::IsNaN(v)), key);
    if constexpr (std::is_same_v<decltype(n), std::int64_t>) {
      alignas(64) std::uint32_t part[kLanes];
      hn::Store(ordered, du, part);
      std::copy_n(part, n, keys + i);
    } else {
      hn::StoreU(ordered, du, keys + i);
    }
  });
}

// Key of the k-th in order. `work` has room for count + 16 words, `sample` for 1024.
std::uint32_t threshold_key(const std::uint32_t* keys, std::int64_t count, std::int64_t k,
                            std::uint32_t* work, std::uint32_t* sample) {
  constexpr std::int64_t kSample = 1024;
  const auto kth = [](std::uint32_t* first, std::int64_t n, std::int64_t at) {
    std::nth_element(first, first + at, first + n, std::greater<>());
    return first[at];
  };
  if (count > 4 * kSample) {
    // A pivot that a little more than k keys should pass, from an even sample.
    for (std::int64_t i = 0; i < kSample; ++i) sample[i] = keys[i * count / kSample];
    const std::int64_t expected = k * kSample / count;
    const std::uint32_t pivot = kth(sample, kSample, std::min(kSample - 1, expected + expected / 2 + 8));
    const DU du;
    const VU p = hn::Set(du, pivot);
    std::int64_t above = 0;
    std::int64_t equal = 0;
    std::int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      const VU v = hn::LoadU(du, keys + i);
      equal += static_cast<std::int64_t>(hn::CountTrue(du, hn::Eq(v, p)));
      // In a register and then stored whole: a compressing store is a slow microprogram on Zen 4. `work` has
      // room.
      const auto larger = hn::Gt(v, p);
      hn::StoreU(hn::Compress(v, larger), du, work + above);
      above += static_cast<std::int64_t>(hn::CountTrue(du, larger));
    }
    for (; i < count; ++i) {
      if (keys[i] > pivot) work[above++] = keys[i];
      equal += keys[i] == pivot ? 1 : 0;
    }
    if (k <= above) return kth(work, above, k - 1);
    if (k <= above + equal) return pivot;
  }
  std::copy_n(keys, count, work);
  return kth(work, count, k - 1);
}

}  // namespace

void select_blocks(const float* scores, std::int64_t count, std::int64_t k, std::uint32_t* scratch,
                   std::uint32_t* mask) {
  std::uint32_t* keys = scratch;
  std::uint32_t* work = scratch + count + 32;
  std::uint32_t* sample = work + count + 32;
  make_keys(scores, count, keys);
  const std::uint32_t threshold = threshold_key(keys, count, k, work, sample);
  // Everything above the threshold, then the first of those at it.
  std::int64_t at_threshold = k;
  const DU du;
  const VU t = hn::Set(du, threshold);
  const auto bits_of_mask = [du](auto m) HWY_ATTR {
    std::uint8_t bytes[8] = {};
    hn::StoreMaskBits(du, m, bytes);
    return std::uint32_t{bytes[0]} | std::uint32_t{bytes[1]} << 8;
  };
  const std::int64_t words = (count + 31) / 32;
  for (std::int64_t i = count; i < words * 32; ++i) keys[i] = 0;  // bits past the end are cleared below
  for (std::int64_t word = 0; word < words; ++word) {
    std::uint32_t bits = 0;
    for (std::int64_t i = 0; i < 32; i += kLanes) {
      bits |= bits_of_mask(hn::Gt(hn::LoadU(du, keys + word * 32 + i), t)) << i;
    }
    mask[word] = bits;
    at_threshold -= __builtin_popcount(bits);
  }
  for (std::int64_t word = 0; word < words && at_threshold > 0; ++word) {
    std::uint32_t equal = 0;
    for (std::int64_t i = 0; i < 32; i += kLanes) {
      equal |= bits_of_mask(hn::Eq(hn::LoadU(du, keys + word * 32 + i), t)) << i;
    }
    if (word == words - 1 && count % 32 != 0) equal &= (1U << (count % 32)) - 1;
    for (; equal != 0 && at_threshold > 0; equal &= equal - 1, --at_threshold) {
      mask[word] |= equal & (~equal + 1);
    }
  }
}

}  // namespace sluice::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::backend::cpu {

HWY_EXPORT(argmax);
HWY_EXPORT(router_row);
HWY_EXPORT(select_blocks);

std::int64_t argmax(const float* x, std::int64_t count) {
  return HWY_DYNAMIC_DISPATCH(argmax)(x, count);
}
void router_row(const float* logits, std::int64_t n, std::int64_t k, bool renormalise, float* scratch,
                std::uint32_t* index, float* weight) {
  HWY_DYNAMIC_DISPATCH(router_row)(logits, n, k, renormalise, scratch, index, weight);
}
void select_blocks(const float* scores, std::int64_t count, std::int64_t k, std::uint32_t* scratch,
                   std::uint32_t* mask) {
  HWY_DYNAMIC_DISPATCH(select_blocks)(scores, count, k, scratch, mask);
}

}  // namespace sluice::backend::cpu
#endif  // HWY_ONCE

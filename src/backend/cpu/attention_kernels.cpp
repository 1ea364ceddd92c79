#include "backend/cpu/attention_kernels.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/numbers.h"
#include "base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/attention_kernels.cpp"
#include "hwy/foreach_target.h"
//
#include "backend/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::backend::cpu::HWY_NAMESPACE {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Heads worked on together: four keys, or four vectors of a value, times these fill the registers.
constexpr int kHeads = kLanes == 16 ? 6 : 2;

// sums[h] = q[h] . k[0 .. 3] for H queries at q, q + dim, ...
template <int H>
HWY_INLINE void dot_tile(const float* q, const float* const* k, std::int64_t dim, V4* sums) {
  VF acc[H][4];
  SLUICE_UNROLL
  for (int h = 0; h < H; ++h) {
    SLUICE_UNROLL
    for (int t = 0; t < 4; ++t) acc[h][t] = zero();
  }
  const auto body = [&](std::int64_t i, auto n) HWY_ATTR {
    VF key[4];
    SLUICE_UNROLL
    for (int t = 0; t < 4; ++t) key[t] = load_n(k[t] + i, n);
    SLUICE_UNROLL
    for (int h = 0; h < H; ++h) {
      const VF query = load_n(q + h * dim + i, n);
      SLUICE_UNROLL
      for (int t = 0; t < 4; ++t) acc[h][t] = hn::MulAdd(query, key[t], acc[h][t]);
    }
  };
  for_each_vector(dim, body);
  SLUICE_UNROLL
  for (int h = 0; h < H; ++h) sums[h] = sum4(acc[h][0], acc[h][1], acc[h][2], acc[h][3]);
}

// to[h * kAttentionBlock + t] = q[h] . keys[t] for H heads; pointers past `count` repeat the last.
template <int H>
HWY_NOINLINE void score_block(const float* q, const float* const* keys, std::int64_t count, std::int64_t dim,
                              float* to) {
  for (std::int64_t t = 0; t < count; t += 4) {
    V4 sums[H];
    dot_tile<H>(q, keys + t, dim, sums);
    for (int h = 0; h < H; ++h) hn::StoreU(sums[h], D4(), to + h * kAttentionBlock + t);
  }
}

// sums[h][i ...] = sums * keep[h] + sum over t of p[h][t] * values[t][i ...], for H heads and V vectors.
template <int H, int V, class N>
HWY_INLINE void value_tile(const float* p, const float* const* values, std::int64_t count, std::int64_t dim,
                           std::int64_t i, const float* keep, float* sums, N n) {
  VF acc[H][V];
  SLUICE_UNROLL
  for (int h = 0; h < H; ++h) {
    SLUICE_UNROLL
    for (int v = 0; v < V; ++v) acc[h][v] = zero();
  }
  for (std::int64_t t = 0; t < count; ++t) {
    VF value[V];
    SLUICE_UNROLL
    for (int v = 0; v < V; ++v) value[v] = load_n(values[t] + i + v * kLanes, n);
    SLUICE_UNROLL
    for (int h = 0; h < H; ++h) {
      const VF weight = set(p[h * kAttentionBlock + t]);
      SLUICE_UNROLL
      for (int v = 0; v < V; ++v) acc[h][v] = hn::MulAdd(weight, value[v], acc[h][v]);
    }
  }
  SLUICE_UNROLL
  for (int h = 0; h < H; ++h) {
    SLUICE_UNROLL
    for (int v = 0; v < V; ++v) {
      float* at = sums + h * dim + i + v * kLanes;
      store_n(hn::MulAdd(load_n(at, n), set(keep[h]), acc[h][v]), at, n);
    }
  }
}

template <int H>
HWY_NOINLINE void value_block(const float* p, const float* const* values, std::int64_t count,
                              std::int64_t dim, const float* keep, float* sums) {
  const std::integral_constant<std::int64_t, kLanes> whole;
  std::int64_t i = 0;
  for (; i + 4 * kLanes <= dim; i += 4 * kLanes)
    value_tile<H, 4>(p, values, count, dim, i, keep, sums, whole);
  for (; i + kLanes <= dim; i += kLanes) value_tile<H, 1>(p, values, count, dim, i, keep, sums, whole);
  if (i < dim) value_tile<H, 1>(p, values, count, dim, i, keep, sums, dim - i);
}

// Calls fn(h, std::integral_constant<int, H>) over the heads, H at most kHeads.
template <class Fn>
HWY_INLINE void for_heads(std::int64_t count, const Fn& fn) {
  std::int64_t h = 0;
  for (; h + kHeads <= count; h += kHeads) fn(h, std::integral_constant<int, kHeads>());
  if constexpr (kHeads > 4) {
    if (h + 4 <= count) {
      fn(h, std::integral_constant<int, 4>());
      h += 4;
    }
  }
  if constexpr (kHeads > 2) {
    if (h + 2 <= count) {
      fn(h, std::integral_constant<int, 2>());
      h += 2;
    }
    if (h + 2 <= count) {
      fn(h, std::integral_constant<int, 2>());
      h += 2;
    }
  }
  if (h < count) fn(h, std::integral_constant<int, 1>());
}

// e^(a - b), 0 when a is -infinity.
HWY_INLINE float exp_difference(float a, float b) {
  return a == kMinusInfinity ? 0 : hn::GetLane(exp(set(a - b)));
}

// Scores of one head and block become probabilities under the running maximum; the entries past `count` up to
// a multiple of the lanes are set to zero. Returns what the earlier sums are multiplied with.
HWY_INLINE float soften(float* p, std::int64_t count, float scale, float& max, float& total) {
  const std::int64_t used = (count + kLanes - 1) / kLanes * kLanes;
  for (std::int64_t t = count; t < used; ++t) p[t] = kMinusInfinity;
  const VF factor = set(scale);
  VF largest = set(kMinusInfinity);
  for (std::int64_t t = 0; t < used; t += kLanes) {
    const VF s = hn::Mul(load(p + t), factor);
    store(s, p + t);
    largest = hn::Max(largest, s);
  }
  const float new_max = std::max(max, hn::GetLane(hn::MaxOfLanes(DF(), largest)));
  const float keep = exp_difference(max, new_max);
  if (new_max == kMinusInfinity) {
    std::fill_n(p, used, 0.0F);
    return keep;
  }
  const VF base = set(new_max);
  VF sums = zero();
  for (std::int64_t t = 0; t < used; t += kLanes) {
    const VF e = exp(hn::Sub(load(p + t), base));
    store(e, p + t);
    sums = hn::Add(sums, e);
  }
  max = new_max;
  total = total * keep + sum(sums);
  return keep;
}

// A head's keys, or values, of one token from 8 bits; dim is a multiple of kQ8Group.
HWY_INLINE void unpack_codes(const std::int8_t* codes, const std::uint16_t* scales, std::int64_t dim,
                             float* to) {
  const hn::Rebind<std::int8_t, DF> bytes;
  const hn::Rebind<std::int32_t, DF> words;
  for (std::int64_t i = 0; i < dim; i += kQ8Group) {
    const VF scale = set(to_float(Half{scales[i / kQ8Group]}));
    for (std::int64_t j = i; j < i + kQ8Group; j += kLanes) {
      const auto code = hn::PromoteTo(words, hn::LoadU(bytes, codes + j));
      store(hn::Mul(hn::ConvertTo(DF(), code), scale), to + j);
    }
  }
}

}  // namespace

void attention_begin(std::int64_t group, std::int64_t dim, float* into) {
  std::fill_n(into, group, kMinusInfinity);
  std::fill_n(into + group, group * (dim + 1), 0.0F);
}

void attention_part(const AttentionHeads& heads, std::int64_t first, std::int64_t last, float* scratch,
                    float* part) {
  const std::int64_t group = heads.group;
  const std::int64_t dim = heads.dim;
  attention_begin(group, dim, part);
  float* max = part;
  float* total = part + group;
  float* sums = part + 2 * group;
  const float* keys[kAttentionBlock + 4];
  const float* values[kAttentionBlock];
  float keep[kHeads];
  float* unpacked = scratch + group * kAttentionBlock;
  for (std::int64_t block = first; block < last; block += kAttentionBlock) {
    const std::int64_t count = std::min(kAttentionBlock, last - block);
    for (std::int64_t t = 0; t < count; ++t) {
      const std::int64_t token = heads.tokens == nullptr ? block + t : std::int64_t{heads.tokens[block + t]};
      const std::int64_t at = token * heads.stride;
      if (heads.key_codes.codes == nullptr) {
        keys[t] = heads.keys + at;
        values[t] = heads.values + at;
        continue;
      }
      // Numbers of a block, unpacked once for the heads that share them: the sums are those of float32.
      float* key = unpacked + 2 * t * dim;
      float* value = key + dim;
      unpack_codes(heads.key_codes.codes + at, heads.key_codes.scales + at / kQ8Group, dim, key);
      unpack_codes(heads.value_codes.codes + at, heads.value_codes.scales + at / kQ8Group, dim, value);
      keys[t] = key;
      values[t] = value;
    }
    for (std::int64_t t = count; t < count + 3; ++t) keys[t] = keys[count - 1];
    for_heads(group, [&](std::int64_t h, auto at_once) HWY_ATTR {
      constexpr int kH = decltype(at_once)::value;
      float* p = scratch + h * kAttentionBlock;
      score_block<kH>(heads.q + h * dim, keys, count, dim, p);
      for (int i = 0; i < kH; ++i) {
        keep[i] = soften(p + i * kAttentionBlock, count, heads.scale, max[h + i], total[h + i]);
      }
      value_block<kH>(p, values, count, dim, keep, sums + h * dim);
    });
  }
}

void attention_merge(std::int64_t group, std::int64_t dim, const float* part, float* into) {
  for (std::int64_t h = 0; h < group; ++h) {
    const float max = std::max(into[h], part[h]);
    const float keep = exp_difference(into[h], max);
    const float take = exp_difference(part[h], max);
    into[h] = max;
    into[group + h] = into[group + h] * keep + part[group + h] * take;
    const float* from = part + 2 * group + h * dim;
    float* to = into + 2 * group + h * dim;
    for_each_vector(dim, [=](std::int64_t i, auto n) HWY_ATTR {
      const VF kept = hn::Mul(load_n(to + i, n), set(keep));
      store_n(hn::MulAdd(load_n(from + i, n), set(take), kept), to + i, n);
    });
  }
}

void attention_finish(std::int64_t group, std::int64_t dim, const float* part, float* out) {
  for (std::int64_t h = 0; h < group; ++h) {
    const float total = part[group + h];
    const VF factor = set(total == 0 ? 0.0F : 1 / total);
    const float* from = part + 2 * group + h * dim;
    float* to = out + h * dim;
    for_each_vector(dim, [=](std::int64_t i, auto n)
                             HWY_ATTR { store_n(hn::Mul(load_n(from + i, n), factor), to + i, n); });
  }
}

void index_scores_range(const float* q, std::int64_t heads, std::int64_t dim, const float* keys, float scale,
                        std::int64_t first, std::int64_t last, float* scores) {
  const D4 d4;
  for (std::int64_t b = first; b < last; b += 4) {
    const float* key[4];
    for (std::int64_t t = 0; t < 4; ++t) key[t] = keys + std::min(b + t, last - 1) * dim;
    V4 total = hn::Zero(d4);
    for_heads(heads, [&](std::int64_t h, auto at_once) HWY_ATTR {
      constexpr int kH = decltype(at_once)::value;
      V4 sums[kH];
      dot_tile<kH>(q + h * dim, key, dim, sums);
      for (int i = 0; i < kH; ++i) {
        // Keeps NaN, which then ranks last.
        total = hn::Add(total, hn::IfThenZeroElse(hn::Lt(sums[i], hn::Zero(d4)), sums[i]));
      }
    });
    total = hn::Mul(total, hn::Set(d4, scale));
    if (b + 4 <= last) {
      hn::StoreU(total, d4, scores + b);
    } else {
      alignas(16) float part[4];
      hn::Store(total, d4, part);
      std::copy_n(part, last - b, scores + b);
    }
  }
}

}  // namespace sluice::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::backend::cpu {

HWY_EXPORT(attention_part);
HWY_EXPORT(attention_begin);
HWY_EXPORT(attention_merge);
HWY_EXPORT(attention_finish);
HWY_EXPORT(index_scores_range);

void attention_part(const AttentionHeads& heads, std::int64_t first, std::int64_t last, float* scratch,
                    float* part) {
  HWY_DYNAMIC_DISPATCH(attention_part)(heads, first, last, scratch, part);
}
void attention_begin(std::int64_t group, std::int64_t dim, float* into) {
  HWY_DYNAMIC_DISPATCH(attention_begin)(group, dim, into);
}
void attention_merge(std::int64_t group, std::int64_t dim, const float* part, float* into) {
  HWY_DYNAMIC_DISPATCH(attention_merge)(group, dim, part, into);
}
void attention_finish(std::int64_t group, std::int64_t dim, const float* part, float* out) {
  HWY_DYNAMIC_DISPATCH(attention_finish)(group, dim, part, out);
}
void index_scores_range(const float* q, std::int64_t heads, std::int64_t dim, const float* keys, float scale,
                        std::int64_t first, std::int64_t last, float* scores) {
  HWY_DYNAMIC_DISPATCH(index_scores_range)(q, heads, dim, keys, scale, first, last, scores);
}

}  // namespace sluice::backend::cpu
#endif  // HWY_ONCE

#include "backend/cpu/delta_kernels.h"

#include <algorithm>
#include <cmath>

#include "base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/delta_kernels.cpp"
#include "hwy/foreach_target.h"
//
#include "backend/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::backend::cpu::HWY_NAMESPACE {
namespace {

constexpr float kUnitEps = 1e-6F;  // added to the sum of squares, inside the root

HWY_INLINE void unit_vector(const float* x, float scale, std::int64_t n, float* to) {
  const auto factor = static_cast<float>(static_cast<double>(scale) /
                                         std::sqrt(static_cast<double>(sum_of_squares(x, n)) + kUnitEps));
  const VF f = set(factor);
  for_each_vector(n, [=](std::int64_t i, auto lanes)
                         HWY_ATTR { store_n(hn::Mul(load_n(x + i, lanes), f), to + i, lanes); });
}

// S *= decay; d = beta (v - S^T k); S += k d^T; y = S^T q with the updated S, for V vectors of columns; the
// decay of S^T k is applied to the sum. `n` is a whole vector's constant, or the columns of a partial one.
template <int V, class N>
HWY_INLINE void step(const float* k, const float* q, std::int64_t dk, std::int64_t dv, const float* v,
                     float decay_value, float beta, const float* from, float* to, float* y, N n) {
  const VF decay = set(decay_value);
  VF even[V];
  VF odd[V];
  SLUICE_UNROLL
  for (int i = 0; i < V; ++i) even[i] = odd[i] = zero();
  std::int64_t a = 0;
  for (; a + 2 <= dk; a += 2) {
    const VF k0 = set(k[a]);
    const VF k1 = set(k[a + 1]);
    SLUICE_UNROLL
    for (int i = 0; i < V; ++i) {
      even[i] = hn::MulAdd(k0, load_n(from + a * dv + i * kLanes, n), even[i]);
      odd[i] = hn::MulAdd(k1, load_n(from + (a + 1) * dv + i * kLanes, n), odd[i]);
    }
  }
  if (a < dk) {
    for (int i = 0; i < V; ++i) {
      even[i] = hn::MulAdd(set(k[a]), load_n(from + a * dv + i * kLanes, n), even[i]);
    }
  }
  VF d[V];
  SLUICE_UNROLL
  for (int i = 0; i < V; ++i) {
    const VF recalled = hn::Mul(hn::Add(even[i], odd[i]), decay);
    d[i] = hn::Mul(set(beta), hn::Sub(load_n(v + i * kLanes, n), recalled));
    even[i] = odd[i] = zero();
  }
  for (a = 0; a + 2 <= dk; a += 2) {
    const VF k0 = set(k[a]);
    const VF k1 = set(k[a + 1]);
    const VF q0 = set(q[a]);
    const VF q1 = set(q[a + 1]);
    SLUICE_UNROLL
    for (int i = 0; i < V; ++i) {
      const std::int64_t at = a * dv + i * kLanes;
      const VF s0 = hn::MulAdd(k0, d[i], hn::Mul(load_n(from + at, n), decay));
      const VF s1 = hn::MulAdd(k1, d[i], hn::Mul(load_n(from + at + dv, n), decay));
      store_n(s0, to + at, n);
      store_n(s1, to + at + dv, n);
      even[i] = hn::MulAdd(q0, s0, even[i]);
      odd[i] = hn::MulAdd(q1, s1, odd[i]);
    }
  }
  if (a < dk) {
    for (int i = 0; i < V; ++i) {
      const std::int64_t at = a * dv + i * kLanes;
      const VF s = hn::MulAdd(set(k[a]), d[i], hn::Mul(load_n(from + at, n), decay));
      store_n(s, to + at, n);
      even[i] = hn::MulAdd(set(q[a]), s, even[i]);
    }
  }
  if (y == nullptr) return;
  SLUICE_UNROLL
  for (int i = 0; i < V; ++i) store_n(hn::Add(even[i], odd[i]), y + i * kLanes, n);
}

template <int V, class N>
HWY_NOINLINE void columns(const DeltaScan& scan, std::int64_t head, std::int64_t column, N n) {
  const std::int64_t dk = scan.shape.key_dim;
  const std::int64_t dv = scan.shape.value_dim;
  const std::int64_t keys = scan.shape.key_heads * dk;
  const std::int64_t row_width = 2 * keys + scan.shape.value_heads * dv;
  const std::int64_t key_head = head / (scan.shape.value_heads / scan.shape.key_heads);
  const float query_scale = 1 / std::sqrt(static_cast<float>(dk));
  alignas(64) float k[kMaxKeyDim];
  alignas(64) float q[kMaxKeyDim];
  const float* from = scan.state_in + head * dk * dv + column;
  float* to = scan.state_out + head * dk * dv + column;
  for (std::int64_t r = 0; r < scan.rows; ++r) {
    const float* row = scan.qkv + r * row_width;
    unit_vector(row + key_head * dk, query_scale, dk, q);
    unit_vector(row + keys + key_head * dk, 1, dk, k);
    const std::int64_t at = r * scan.shape.value_heads + head;
    step<V>(k, q, dk, dv, row + 2 * keys + head * dv + column, scan.decay[at], scan.beta[at], from, to,
            scan.y == nullptr ? nullptr : scan.y + at * dv + column, n);
    from = to;
  }
}

}  // namespace

void delta_columns(const DeltaScan& scan, std::int64_t head, std::int64_t first, std::int64_t last) {
  constexpr int kVectors = kLanes == 16 ? 4 : 2;  // two chains each, beside d
  const std::integral_constant<std::int64_t, kLanes> whole;
  std::int64_t c = first;
  for (; c + kVectors * kLanes <= last; c += kVectors * kLanes) columns<kVectors>(scan, head, c, whole);
  for (; c + kLanes <= last; c += kLanes) columns<1>(scan, head, c, whole);
  if (c < last) columns<1>(scan, head, c, last - c);
}

}  // namespace sluice::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::backend::cpu {

HWY_EXPORT(delta_columns);

void delta_columns(const DeltaScan& scan, std::int64_t head, std::int64_t first, std::int64_t last) {
  HWY_DYNAMIC_DISPATCH(delta_columns)(scan, head, first, last);
}

}  // namespace sluice::backend::cpu
#endif  // HWY_ONCE

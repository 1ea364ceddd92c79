#include "backend/cpu/row_kernels.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "base/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/row_kernels.cpp"
#include "hwy/foreach_target.h"
//
#include "backend/cpu/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::backend::cpu::HWY_NAMESPACE {

void silu_range(float* x, std::int64_t count, float div) {
  const VF divisor = set(div);
  for_each_vector(count, [=](std::int64_t i, auto n)
                             HWY_ATTR { store_n(silu(hn::Div(load_n(x + i, n), divisor)), x + i, n); });
}

void silu_multiply_range(const float* gate, const float* up, std::int64_t count, float* out) {
  for_each_vector(count, [=](std::int64_t i, auto n) HWY_ATTR {
    store_n(hn::Mul(silu(load_n(gate + i, n)), load_n(up + i, n)), out + i, n);
  });
}

void add_scaled(const float* from, float factor, std::int64_t count, float* to) {
  const VF f = set(factor);
  for_each_vector(count, [=](std::int64_t i, auto n) HWY_ATTR {
    store_n(hn::MulAdd(f, load_n(from + i, n), load_n(to + i, n)), to + i, n);
  });
}

namespace {

float inverse_rms(const float* x, std::int64_t n, float eps) {
  const double mean = static_cast<double>(sum_of_squares(x, n)) / static_cast<double>(n);
  return static_cast<float>(1.0 / std::sqrt(mean + static_cast<double>(eps)));
}

}  // namespace

void norm_stream(const float* x, const float* w, float shift, float eps, std::int64_t n, float* y) {
  const VF scale = set(inverse_rms(x, n, eps));
  const VF add = set(shift);
  for_each_vector(n, [=](std::int64_t i, auto lanes) HWY_ATTR {
    const VF gain = hn::Add(load_n(w + i, lanes), add);
    store_n(hn::Mul(hn::Mul(load_n(x + i, lanes), scale), gain), y + i, lanes);
  });
}

float inject_factor(float gate, std::int64_t streams) {
  return 2 * sigmoid1(gate / static_cast<float>(streams));
}

void mix_range(const float* u, const float* normed, std::int64_t streams, std::int64_t n, std::int64_t first,
               std::int64_t last, float* mixed) {
  const VF divisor = set(static_cast<float>(streams));
  for_each_vector(last - first, [=](std::int64_t i, auto lanes) HWY_ATTR {
    VF total = zero();
    for (std::int64_t s = 0; s < streams; ++s) {
      const std::int64_t at = s * n + first + i;
      total = hn::MulAdd(sigmoid(load_n(u + at, lanes)), load_n(normed + at, lanes), total);
    }
    store_n(hn::Div(total, divisor), mixed + first + i, lanes);
  });
}

void combine_range(const float* y, const float* weight, std::int64_t slots, std::int64_t width,
                   std::int64_t first, std::int64_t last, float* out) {
  for_each_vector(last - first, [=](std::int64_t i, auto lanes) HWY_ATTR {
    VF total = zero();
    for (std::int64_t s = 0; s < slots; ++s) {
      if (weight[s] == 0) continue;
      total = hn::MulAdd(set(weight[s]), load_n(y + s * width + first + i, lanes), total);
    }
    store_n(total, out + first + i, lanes);
  });
}

void shared_add_row(const float* x, const float* y, const std::uint16_t* gate, std::int64_t width,
                    float* out) {
  const float dot = sum_over(width, [=](std::int64_t i, auto n) HWY_ATTR {
    return hn::Mul(load_bf16_n(gate + i, n), load_n(x + i, n));
  });
  add_scaled(y, sigmoid1(dot), width, out);
}

void ple_gate_stream(const float* key, const float* query, const float* value, std::int64_t n, float* gated) {
  const float dot = sum_over(n, [=](std::int64_t i, auto lanes) HWY_ATTR {
    return hn::Mul(load_n(key + i, lanes), load_n(query + i, lanes));
  });
  const float d = dot / std::sqrt(static_cast<float>(n));
  const float sign = d > 0 ? 1.0F : d < 0 ? -1.0F : d;  // 0 stays 0 and NaN stays NaN
  const VF factor = sigmoid(set(sign * std::sqrt(std::max(std::abs(d), 1e-6F))));
  for_each_vector(n, [=](std::int64_t i, auto lanes)
                         HWY_ATTR { store_n(hn::Mul(factor, load_n(value + i, lanes)), gated + i, lanes); });
}

namespace {

// w[channel][kernel] of a vector of channels, as one vector a tap.
template <class N>
HWY_INLINE void load_taps(const float* w, std::int64_t kernel, N n, VF* taps) {
  if constexpr (!std::is_same_v<N, std::int64_t>) {
    if (kernel == 4) {
      hn::LoadInterleaved4(DF(), w, taps[0], taps[1], taps[2], taps[3]);
      return;
    }
  }
  for (std::int64_t i = 0; i < kernel; ++i) {
    alignas(64) float tap[kLanes] = {};
    for (std::int64_t c = 0; c < n; ++c) tap[c] = w[c * kernel + i];
    taps[i] = hn::Load(DF(), tap);
  }
}

}  // namespace

void conv_range(Backend::ConvShape shape, const float* in, const float* w, Ring ring, std::int64_t base,
                std::int64_t rows, const float* add, float* out, std::int64_t first, std::int64_t last) {
  const std::int64_t channels = shape.channels;
  const std::int64_t kernel = shape.kernel;
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* from[kMaxConvKernel];  // null before the sequence's start
    for (std::int64_t i = 0; i < kernel; ++i) {
      const std::int64_t position = base + r - (kernel - 1 - i) * shape.dilation;
      from[i] = position < 0       ? nullptr
                : position >= base ? in + (position - base) * channels
                                   : ring.data.address() + position % ring.span * channels;
    }
    for_each_vector(last - first, [&](std::int64_t i, auto n) HWY_ATTR {
      const std::int64_t c = first + i;
      VF taps[kMaxConvKernel];
      load_taps(w + c * kernel, kernel, n, taps);
      VF total = zero();
      for (std::int64_t t = 0; t < kernel; ++t) {
        if (from[t] != nullptr) total = hn::MulAdd(taps[t], load_n(from[t] + c, n), total);
      }
      VF result = silu(total);
      if (add != nullptr) result = hn::Add(result, load_n(add + r * channels + c, n));
      store_n(result, out + r * channels + c, n);
    });
  }
  for (std::int64_t r = std::max<std::int64_t>(0, rows - ring.span); r < rows; ++r) {
    std::copy_n(in + r * channels + first, last - first,
                ring.data.address() + (base + r) % ring.span * channels + first);
  }
}

void delta_gates_row(const float* a, const float* b, const float* a_log, const float* dt_bias,
                     std::int64_t heads, float* decay, float* beta) {
  for_each_vector(heads, [=](std::int64_t i, auto n) HWY_ATTR {
    const VF step = softplus(hn::Add(load_n(a + i, n), load_n(dt_bias + i, n)));
    store_n(exp(hn::Neg(hn::Mul(exp(load_n(a_log + i, n)), step))), decay + i, n);
    store_n(sigmoid(load_n(b + i, n)), beta + i, n);
  });
}

void gate_norm_head(const float* y, const float* z, const float* w, float eps, GateKind gate,
                    std::int64_t dim, float* out) {
  const VF scale = set(inverse_rms(y, dim, eps));
  for_each_vector(dim, [=](std::int64_t i, auto n) HWY_ATTR {
    const VF logit = load_n(z + i, n);
    const VF factor = gate == GateKind::kSigmoid ? sigmoid(logit) : silu(logit);
    const VF normed = hn::Mul(hn::Mul(load_n(y + i, n), scale), load_n(w + i, n));
    store_n(hn::Mul(normed, factor), out + i, n);
  });
}

void norm_rope_head(const float* x, const float* w, float eps, std::int64_t dim, const float* cos,
                    const float* sin, std::int64_t half, float* out) {
  const VF scale = set(inverse_rms(x, dim, eps));
  for_each_vector(dim, [=](std::int64_t i, auto n) HWY_ATTR {
    store_n(hn::Mul(hn::Mul(load_n(x + i, n), scale), load_n(w + i, n)), out + i, n);
  });
  for_each_vector(half, [=](std::int64_t i, auto n) HWY_ATTR {
    const VF c = load_n(cos + i, n);
    const VF s = load_n(sin + i, n);
    const VF low = load_n(out + i, n);
    const VF high = load_n(out + half + i, n);
    store_n(hn::NegMulAdd(high, s, hn::Mul(low, c)), out + i, n);
    store_n(hn::MulAdd(low, s, hn::Mul(high, c)), out + half + i, n);
  });
}

void mean_rows(const float* x, std::int64_t count, std::int64_t dim, float* mean) {
  const VF divisor = set(static_cast<float>(count));
  for_each_vector(dim, [=](std::int64_t i, auto n) HWY_ATTR {
    VF total = zero();
    for (std::int64_t t = 0; t < count; ++t) total = hn::Add(total, load_n(x + t * dim + i, n));
    store_n(hn::Div(total, divisor), mean + i, n);
  });
}

void sigmoid_multiply(const float* gate, std::int64_t count, float* out) {
  for_each_vector(count, [=](std::int64_t i, auto n) HWY_ATTR {
    store_n(hn::Mul(load_n(out + i, n), sigmoid(load_n(gate + i, n))), out + i, n);
  });
}

void apply_function(Function function, const float* x, std::int64_t count, float* out) {
  for_each_vector(count, [=](std::int64_t i, auto n) HWY_ATTR {
    const VF v = load_n(x + i, n);
    VF result = v;
    switch (function) {
      case Function::kExp:
        result = exp(v);
        break;
      case Function::kSigmoid:
        result = sigmoid(v);
        break;
      case Function::kSilu:
        result = silu(v);
        break;
      case Function::kSoftplus:
        result = softplus(v);
        break;
    }
    store_n(result, out + i, n);
  });
}

}  // namespace sluice::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace sluice::backend::cpu {

HWY_EXPORT(silu_range);
HWY_EXPORT(silu_multiply_range);
HWY_EXPORT(add_scaled);
HWY_EXPORT(norm_stream);
HWY_EXPORT(inject_factor);
HWY_EXPORT(mix_range);
HWY_EXPORT(combine_range);
HWY_EXPORT(shared_add_row);
HWY_EXPORT(ple_gate_stream);
HWY_EXPORT(conv_range);
HWY_EXPORT(delta_gates_row);
HWY_EXPORT(gate_norm_head);
HWY_EXPORT(norm_rope_head);
HWY_EXPORT(mean_rows);
HWY_EXPORT(sigmoid_multiply);
HWY_EXPORT(apply_function);

void silu_range(float* x, std::int64_t count, float div) {
  HWY_DYNAMIC_DISPATCH(silu_range)(x, count, div);
}
void silu_multiply_range(const float* gate, const float* up, std::int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(silu_multiply_range)(gate, up, count, out);
}
void add_scaled(const float* from, float factor, std::int64_t count, float* to) {
  HWY_DYNAMIC_DISPATCH(add_scaled)(from, factor, count, to);
}
void norm_stream(const float* x, const float* w, float shift, float eps, std::int64_t n, float* y) {
  HWY_DYNAMIC_DISPATCH(norm_stream)(x, w, shift, eps, n, y);
}
float inject_factor(float gate, std::int64_t streams) {
  return HWY_DYNAMIC_DISPATCH(inject_factor)(gate, streams);
}
void mix_range(const float* u, const float* normed, std::int64_t streams, std::int64_t n, std::int64_t first,
               std::int64_t last, float* mixed) {
  HWY_DYNAMIC_DISPATCH(mix_range)(u, normed, streams, n, first, last, mixed);
}
void combine_range(const float* y, const float* weight, std::int64_t slots, std::int64_t width,
                   std::int64_t first, std::int64_t last, float* out) {
  HWY_DYNAMIC_DISPATCH(combine_range)(y, weight, slots, width, first, last, out);
}
void shared_add_row(const float* x, const float* y, const std::uint16_t* gate, std::int64_t width,
                    float* out) {
  HWY_DYNAMIC_DISPATCH(shared_add_row)(x, y, gate, width, out);
}
void ple_gate_stream(const float* key, const float* query, const float* value, std::int64_t n, float* gated) {
  HWY_DYNAMIC_DISPATCH(ple_gate_stream)(key, query, value, n, gated);
}
void conv_range(Backend::ConvShape shape, const float* in, const float* w, Ring ring, std::int64_t base,
                std::int64_t rows, const float* add, float* out, std::int64_t first, std::int64_t last) {
  HWY_DYNAMIC_DISPATCH(conv_range)(shape, in, w, ring, base, rows, add, out, first, last);
}
void delta_gates_row(const float* a, const float* b, const float* a_log, const float* dt_bias,
                     std::int64_t heads, float* decay, float* beta) {
  HWY_DYNAMIC_DISPATCH(delta_gates_row)(a, b, a_log, dt_bias, heads, decay, beta);
}
void gate_norm_head(const float* y, const float* z, const float* w, float eps, GateKind gate,
                    std::int64_t dim, float* out) {
  HWY_DYNAMIC_DISPATCH(gate_norm_head)(y, z, w, eps, gate, dim, out);
}
void norm_rope_head(const float* x, const float* w, float eps, std::int64_t dim, const float* cos,
                    const float* sin, std::int64_t half, float* out) {
  HWY_DYNAMIC_DISPATCH(norm_rope_head)(x, w, eps, dim, cos, sin, half, out);
}
void mean_rows(const float* x, std::int64_t count, std::int64_t dim, float* mean) {
  HWY_DYNAMIC_DISPATCH(mean_rows)(x, count, dim, mean);
}
void sigmoid_multiply(const float* gate, std::int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(sigmoid_multiply)(gate, count, out);
}
void apply_function(Function function, const float* x, std::int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(apply_function)(function, x, count, out);
}

}  // namespace sluice::backend::cpu
#endif  // HWY_ONCE

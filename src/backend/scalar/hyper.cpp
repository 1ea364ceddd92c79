// Hyper-connections: reading from and writing to the wide residual (model.md 3.3).
#include <algorithm>

#include "backend/scalar/math.h"
#include "backend/scalar/scalar_backend.h"
#include "base/numbers.h"

namespace sluice::backend {

void ScalarBackend::replicate(WideShape shape, Dev<const float> e, Dev<float> wide) {
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    for (std::int64_t s = 0; s < shape.streams; ++s) {
      std::copy_n(e.address() + r * shape.width, shape.width,
                  wide.address() + (r * shape.streams + s) * shape.width);
    }
  }
}

void ScalarBackend::group_norm(WideShape shape, Dev<const float> x, Dev<const float> w, float shift,
                               float eps, Dev<float> y) {
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    for (std::int64_t s = 0; s < shape.streams; ++s) {
      const std::int64_t at = (r * shape.streams + s) * shape.width;
      const float* in = x.address() + at;
      const float* gain = w.address() + s * shape.width;
      float* out = y.address() + at;
      const double scale = scalar::inverse_rms(in, shape.width, eps);
      for (std::int64_t i = 0; i < shape.width; ++i) {
        out[i] = static_cast<float>(in[i] * scale * (static_cast<double>(gain[i]) + shift));
      }
    }
  }
}

void ScalarBackend::inject(WideShape shape, Dev<const float> out, Dev<const float> gate, Dev<float> wide) {
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    const float* from = out.address() + r * shape.width;
    for (std::int64_t s = 0; s < shape.streams; ++s) {
      const double logit = gate.address()[r * shape.streams + s];
      const double factor = 2 * scalar::sigmoid(logit / static_cast<double>(shape.streams));
      float* to = wide.address() + (r * shape.streams + s) * shape.width;
      for (std::int64_t i = 0; i < shape.width; ++i) to[i] = static_cast<float>(to[i] + factor * from[i]);
    }
  }
}

void ScalarBackend::norm_prepare(WideShape shape, Dev<const float> out, Dev<const float> gate,
                                 Dev<float> wide, Dev<const float> w, float eps, Dev<float> y,
                                 const HalfStreams* halves) {
  if (out && gate) ScalarBackend::inject(shape, out, gate, wide);
  ScalarBackend::group_norm(shape, wide, w, 0, eps, y);
  if (halves == nullptr) return;
  const std::int64_t count = shape.rows * shape.streams * shape.width;
  for (std::int64_t i = 0; i < count; i += 2) {
    halves->even.address()[i / 2] = to_half(y.address()[i]).bits;
    halves->odd.address()[i / 2] = to_half(y.address()[i + 1]).bits;
  }
  for (std::int64_t i = 0; i < count; i += 32) {
    double sum = 0;
    for (std::int64_t j = i; j < i + 32; ++j) sum += y.address()[j];
    halves->sums.address()[i / 32] = static_cast<float>(sum);
  }
}

void ScalarBackend::hc_mix(WideShape shape, Dev<const float> u, Dev<const float> normed, Dev<float> mixed) {
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    for (std::int64_t i = 0; i < shape.width; ++i) {
      double sum = 0;
      for (std::int64_t s = 0; s < shape.streams; ++s) {
        const std::int64_t at = (r * shape.streams + s) * shape.width + i;
        sum += scalar::sigmoid(u.address()[at]) * normed.address()[at];
      }
      mixed.address()[r * shape.width + i] = static_cast<float>(sum / static_cast<double>(shape.streams));
    }
  }
}

void ScalarBackend::mtp_fold(WideShape shape, Dev<const float> fe, Dev<const float> fh, Dev<float> wide) {
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    for (std::int64_t s = 0; s < shape.streams; ++s) {
      const std::int64_t at = (r * shape.streams + s) * shape.width;
      for (std::int64_t i = 0; i < shape.width; ++i) {
        wide.address()[at + i] = fe.address()[r * shape.width + i] + fh.address()[at + i];
      }
    }
  }
}

}  // namespace sluice::backend

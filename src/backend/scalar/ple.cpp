// The n-gram embedding's gate, and the causal convolution it shares with the DeltaNet (model.md 3.8, 3.10).
#include <algorithm>
#include <cmath>

#include "backend/scalar/math.h"
#include "backend/scalar/scalar_backend.h"

namespace sluice::backend {

void ScalarBackend::ple_gate(WideShape shape, Dev<const float> key, Dev<const float> query,
                             Dev<const float> value, Dev<float> gated) {
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    for (std::int64_t s = 0; s < shape.streams; ++s) {
      const std::int64_t at = (r * shape.streams + s) * shape.width;
      const double d = scalar::dot(key.address() + at, query.address() + at, shape.width) /
                       std::sqrt(static_cast<double>(shape.width));
      const double sign = d > 0 ? 1 : d < 0 ? -1 : d;  // 0 stays 0 and NaN stays NaN
      const double factor = scalar::sigmoid(sign * std::sqrt(std::max(std::abs(d), 1e-6)));
      for (std::int64_t i = 0; i < shape.width; ++i) {
        gated.address()[at + i] = static_cast<float>(factor * value.address()[r * shape.width + i]);
      }
    }
  }
}

void ScalarBackend::causal_conv(ConvShape shape, Dev<const float> in, Dev<const float> w, Ring ring,
                                std::int64_t base, std::int64_t rows, Dev<const float> add, Dev<float> out) {
  const std::int64_t channels = shape.channels;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < channels; ++c) {
      double sum = 0;
      for (std::int64_t i = 0; i < shape.kernel; ++i) {
        const std::int64_t position = base + r - (shape.kernel - 1 - i) * shape.dilation;
        if (position < 0) continue;
        const float* row = position >= base ? in.address() + (position - base) * channels
                                            : ring.data.address() + position % ring.span * channels;
        sum += static_cast<double>(w.address()[c * shape.kernel + i]) * row[c];
      }
      double result = scalar::silu(sum);
      if (add) result += add.address()[r * channels + c];
      out.address()[r * channels + c] = static_cast<float>(result);
    }
  }
  for (std::int64_t r = std::max<std::int64_t>(0, rows - ring.span); r < rows; ++r) {
    std::copy_n(in.address() + r * channels, channels,
                ring.data.address() + (base + r) % ring.span * channels);
  }
}

}  // namespace sluice::backend

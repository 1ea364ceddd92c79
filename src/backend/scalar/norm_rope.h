// RMS norm and rotation of one head, shared by attention and the indexer (model.md 3.5, 3.7).
#pragma once

#include <vector>

#include "backend/scalar/math.h"
#include "backend/types.h"

namespace sluice::backend::scalar {

/// out[0 .. dim) = rope(x * rsqrt(mean x^2 + eps) * w) with the tables of row `row`.
inline void norm_rope_head(const double* x, const float* w, std::int64_t dim, double eps, const Rope& rope,
                           std::int64_t row, std::vector<double>& normed, float* out) {
  double sum = 0;
  for (std::int64_t i = 0; i < dim; ++i) sum += x[i] * x[i];
  const double scale = 1 / std::sqrt(sum / static_cast<double>(dim) + eps);
  normed.resize(static_cast<std::size_t>(dim));
  for (std::int64_t i = 0; i < dim; ++i) normed[static_cast<std::size_t>(i)] = x[i] * scale * w[i];
  const std::int64_t half = rope.dims / 2;
  for (std::int64_t j = 0; j < half; ++j) {
    const double cos = rope.cos.address()[row * half + j];
    const double sin = rope.sin.address()[row * half + j];
    double& low = normed[static_cast<std::size_t>(j)];
    double& high = normed[static_cast<std::size_t>(j + half)];
    const double rotated = low * cos - high * sin;
    high = high * cos + low * sin;
    low = rotated;
  }
  for (std::int64_t i = 0; i < dim; ++i) out[i] = static_cast<float>(normed[static_cast<std::size_t>(i)]);
}

}  // namespace sluice::backend::scalar

// Scalar functions of the reference: in double, safe for every finite input, rounded by their caller.
#pragma once

#include <cmath>
#include <cstdint>

namespace sluice::backend::scalar {

inline double sigmoid(double x) {
  if (x >= 0) return 1 / (1 + std::exp(-x));
  const double e = std::exp(x);  // NaN takes this way too and stays NaN
  return e / (1 + e);
}

inline double silu(double x) {
  return x * sigmoid(x);
}

/// log(1 + e^x), linear above 20 as in the reference library.
inline double softplus(double x) {
  return x > 20 ? x : std::log1p(std::exp(x));
}

inline double dot(const float* a, const float* b, std::int64_t count) {
  double sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += static_cast<double>(a[i]) * b[i];
  return sum;
}

inline double sum_of_squares(const float* x, std::int64_t count) {
  return dot(x, x, count);
}

/// 1 / sqrt(mean of x^2 + eps).
inline double inverse_rms(const float* x, std::int64_t count, double eps) {
  return 1 / std::sqrt(sum_of_squares(x, count) / static_cast<double>(count) + eps);
}

/// x - max as a softmax needs it: an infinite maximum gives 0 to its equals instead of NaN.
inline double below_max(double x, double max) {
  return x == max ? 0 : x - max;
}

}  // namespace sluice::backend::scalar

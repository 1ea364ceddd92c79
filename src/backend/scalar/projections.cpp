// Projections: y = W x for every weight format.
#include <vector>

#include "backend/scalar/math.h"
#include "backend/scalar/scalar_backend.h"
#include "backend/scalar/weights.h"

namespace sluice::backend {

namespace {

/// Calls done(r, o, sum) with the double sum of every output; a weight row is unpacked once for all rows.
template <class Done>
void project(const Matrix& w, const float* x, std::int64_t rows, const Done& done) {
  std::vector<float> weights(static_cast<std::size_t>(w.in));
  for (std::int64_t o = 0; o < w.out; ++o) {
    scalar::dequantise_row(w, o, weights);
    for (std::int64_t r = 0; r < rows; ++r) done(r, o, scalar::dot(weights.data(), x + r * w.in, w.in));
  }
}

}  // namespace

void ScalarBackend::linear(const Matrix& w, Dev<const float> x, std::int64_t rows, Dev<float> y) {
  project(w, x.address(), rows, [&](std::int64_t r, std::int64_t o, double sum) {
    y.address()[r * w.out + o] = static_cast<float>(sum);
  });
}

void ScalarBackend::linear_silu(const Matrix& w, Dev<const float> x, std::int64_t rows, float div,
                                Dev<float> y) {
  project(w, x.address(), rows, [&](std::int64_t r, std::int64_t o, double sum) {
    y.address()[r * w.out + o] = static_cast<float>(scalar::silu(sum / div));
  });
}

}  // namespace sluice::backend

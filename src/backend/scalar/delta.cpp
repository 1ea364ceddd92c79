// Gated DeltaNet (model.md 3.8).
#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/scalar/math.h"
#include "backend/scalar/scalar_backend.h"

namespace sluice::backend {

namespace {

constexpr double kUnitEps = 1e-6;  // added to the sum of squares, inside the root

// One head, one row: S *= decay; d = beta (v - S^T k); S += k d^T; y = S^T q with the updated S.
// The state is rounded to float32 once a row, so that a chunk may end after any of them.
void delta_token(DeltaShape shape, const std::vector<double>& q, const std::vector<double>& k, const float* v,
                 double decay, double beta, float* state, std::vector<double>& d, float* y) {
  const std::int64_t dv = shape.value_dim;
  std::fill(d.begin(), d.end(), 0.0);
  for (std::int64_t a = 0; a < shape.key_dim; ++a) {
    const double key = k[static_cast<std::size_t>(a)];
    for (std::int64_t c = 0; c < dv; ++c) {
      d[static_cast<std::size_t>(c)] += state[a * dv + c] * decay * key;
    }
  }
  for (std::int64_t c = 0; c < dv; ++c) {
    double& element = d[static_cast<std::size_t>(c)];
    element = beta * (v[c] - element);
  }
  for (std::int64_t a = 0; a < shape.key_dim; ++a) {
    const double key = k[static_cast<std::size_t>(a)];
    for (std::int64_t c = 0; c < dv; ++c) {
      float& s = state[a * dv + c];
      s = static_cast<float>(s * decay + key * d[static_cast<std::size_t>(c)]);
    }
  }
  if (y == nullptr) return;
  std::fill(d.begin(), d.end(), 0.0);
  for (std::int64_t a = 0; a < shape.key_dim; ++a) {
    const double query = q[static_cast<std::size_t>(a)];
    for (std::int64_t c = 0; c < dv; ++c) d[static_cast<std::size_t>(c)] += state[a * dv + c] * query;
  }
  for (std::int64_t c = 0; c < dv; ++c) y[c] = static_cast<float>(d[static_cast<std::size_t>(c)]);
}

void unit_vector(const float* x, double scale, std::vector<double>& to) {
  const auto count = static_cast<std::int64_t>(to.size());
  const double factor = scale / std::sqrt(scalar::sum_of_squares(x, count) + kUnitEps);
  for (std::int64_t i = 0; i < count; ++i) to[static_cast<std::size_t>(i)] = x[i] * factor;
}

}  // namespace

void ScalarBackend::delta_gates(Dev<const float> a, Dev<const float> b, Dev<const float> a_log,
                                Dev<const float> dt_bias, std::int64_t rows, std::int64_t value_heads,
                                Dev<float> decay, Dev<float> beta) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t j = 0; j < value_heads; ++j) {
      const std::int64_t at = r * value_heads + j;
      const double step = scalar::softplus(static_cast<double>(a.address()[at]) + dt_bias.address()[j]);
      const double rate = std::exp(static_cast<double>(a_log.address()[j]));
      decay.address()[at] = static_cast<float>(std::exp(-rate * step));
      beta.address()[at] = static_cast<float>(scalar::sigmoid(b.address()[at]));
    }
  }
}

void ScalarBackend::delta_scan(DeltaShape shape, Dev<const float> qkv, Dev<const float> decay,
                               Dev<const float> beta, std::int64_t rows, Dev<const float> state_in,
                               Dev<float> state_out, Dev<float> y) {
  const std::int64_t dk = shape.key_dim;
  const std::int64_t dv = shape.value_dim;
  const std::int64_t keys = shape.key_heads * dk;
  const std::int64_t row_width = 2 * keys + shape.value_heads * dv;
  if (state_in.address() != state_out.address()) {
    std::copy_n(state_in.address(), shape.value_heads * dk * dv, state_out.address());
  }
  std::vector<double> q(static_cast<std::size_t>(dk));
  std::vector<double> k(static_cast<std::size_t>(dk));
  std::vector<double> d(static_cast<std::size_t>(dv));
  const double query_scale = 1 / std::sqrt(static_cast<double>(dk));
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* row = qkv.address() + r * row_width;
    for (std::int64_t j = 0; j < shape.value_heads; ++j) {
      const std::int64_t key_head = j / (shape.value_heads / shape.key_heads);
      unit_vector(row + key_head * dk, query_scale, q);
      unit_vector(row + keys + key_head * dk, 1, k);
      const std::int64_t at = r * shape.value_heads + j;
      delta_token(shape, q, k, row + 2 * keys + j * dv, decay.address()[at], beta.address()[at],
                  state_out.address() + j * dk * dv, d, y ? y.address() + at * dv : nullptr);
    }
  }
}

void ScalarBackend::delta_gate_norm(Dev<const float> y, Dev<const float> z, Dev<const float> w, float eps,
                                    GateKind gate, std::int64_t rows, std::int64_t heads, std::int64_t dim,
                                    Dev<float> out) {
  for (std::int64_t head = 0; head < rows * heads; ++head) {
    const float* in = y.address() + head * dim;
    const double scale = scalar::inverse_rms(in, dim, eps);
    for (std::int64_t i = 0; i < dim; ++i) {
      const double logit = z.address()[head * dim + i];
      const double factor = gate == GateKind::kSigmoid ? scalar::sigmoid(logit) : scalar::silu(logit);
      out.address()[head * dim + i] = static_cast<float>(in[i] * scale * w.address()[i] * factor);
    }
  }
}

}  // namespace sluice::backend

// Row utilities.
#include <algorithm>
#include <cmath>

#include "backend/scalar/math.h"
#include "backend/scalar/scalar_backend.h"
#include "backend/scalar/weights.h"
#include "base/numbers.h"

namespace sluice::backend {

void ScalarBackend::embed_rows(const Matrix& table, Dev<const std::int32_t> ids, std::int64_t rows,
                               Dev<float> out) {
  for (std::int64_t r = 0; r < rows; ++r) {
    scalar::dequantise_row(table, ids.address()[r],
                           {out.address() + r * table.in, static_cast<std::size_t>(table.in)});
  }
}

void ScalarBackend::gather_rows(Dev<const float> x, Dev<const std::uint32_t> index, std::int64_t rows,
                                std::int64_t width, Dev<float> out) {
  for (std::int64_t r = 0; r < rows; ++r) {
    std::copy_n(x.address() + std::int64_t{index.address()[r]} * width, width, out.address() + r * width);
  }
}

void ScalarBackend::scatter_add_rows(Dev<const float> y, Dev<const std::uint32_t> index,
                                     Dev<const float> weight, std::int64_t rows, std::int64_t width,
                                     Dev<float> out) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const double factor = weight.address()[r];
    const float* from = y.address() + r * width;
    float* to = out.address() + std::int64_t{index.address()[r]} * width;
    for (std::int64_t i = 0; i < width; ++i) to[i] = static_cast<float>(to[i] + factor * from[i]);
  }
}

void ScalarBackend::shared_add_rows(Dev<const float> x, Dev<const float> y, Dev<const std::uint16_t> gate,
                                    std::int64_t rows, std::int64_t width, Dev<float> out) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* in = x.address() + r * width;
    double sum = 0;
    for (std::int64_t i = 0; i < width; ++i) {
      sum += static_cast<double>(to_float(BFloat16{gate.address()[i]})) * in[i];
    }
    const double factor = scalar::sigmoid(sum);
    const float* from = y.address() + r * width;
    float* to = out.address() + r * width;
    for (std::int64_t i = 0; i < width; ++i) to[i] = static_cast<float>(to[i] + factor * from[i]);
  }
}

void ScalarBackend::gated_add_rows(Dev<const float> y, Dev<const float> gate, std::int64_t rows,
                                   std::int64_t width, Dev<float> out) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const double factor = scalar::sigmoid(gate.address()[r]);
    for (std::int64_t i = r * width; i < (r + 1) * width; ++i) {
      out.address()[i] = static_cast<float>(out.address()[i] + factor * y.address()[i]);
    }
  }
}

void ScalarBackend::silu_rows(Dev<float> x, std::int64_t count, float div) {
  for (std::int64_t i = 0; i < count; ++i) {
    float& value = x.address()[i];
    value = static_cast<float>(scalar::silu(static_cast<double>(value) / div));
  }
}

void ScalarBackend::argmax_rows(Dev<const float> x, std::int64_t rows, std::int64_t width,
                                Dev<std::int32_t> index) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* row = x.address() + r * width;
    std::int64_t best = -1;
    for (std::int64_t i = 0; i < width; ++i) {
      if (std::isnan(row[i])) continue;
      if (best < 0 || row[i] > row[best]) best = i;
    }
    index.address()[r] = static_cast<std::int32_t>(std::max<std::int64_t>(best, 0));
  }
}

}  // namespace sluice::backend

// Projections: matrices split over threads by what their weights cost.
#include <algorithm>
#include <array>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/linear_kernels.h"
#include "backend/cpu/row_kernels.h"
#include "backend/cpu/split.h"
#include "backend/cpu/work_line.h"

namespace sluice::backend {

const float* CpuBackend::arrange_rows(cpu::Order order, const float* x, std::int64_t rows, std::int64_t in,
                                      Scratch<float>& to) {
  const std::int64_t stride = cpu::padded(in);
  float* out = to.get(rows * stride);
  split(rows, 2 * kPerElement * static_cast<double>(in), [&](int, std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) cpu::arrange(order, x + r * in, in, out + r * stride);
  });
  return out;
}

void CpuBackend::linear(const Matrix& w, Dev<const float> x, std::int64_t rows, Dev<float> y) {
  const Projection part{w, y};
  linear_many(std::span(&part, 1), x, rows);
}

void CpuBackend::linear_many(std::span<const Projection> parts, Dev<const float> x, std::int64_t rows) {
  // Neighbours that want the same of x share it, and one parallel region.
  for (std::size_t begin = 0, end = 0; begin < parts.size(); begin = end) {
    const Matrix& w = parts[begin].w;
    end = begin + 1;
    if (!takes_integers(w.format, w.group, w.in)) {
      float_linear(w, x, rows, parts[begin].y);
      continue;
    }
    while (end < parts.size() && parts[end].w.group == w.group &&
           takes_integers(parts[end].w.format, w.group, w.in) &&
           cpu::order_of(parts[end].w.format) == cpu::order_of(w.format)) {
      ++end;
    }
    integer_linear(parts.subspan(begin, end - begin), x.address(), rows);
  }
}

void CpuBackend::float_linear(const Matrix& w, Dev<const float> x, std::int64_t rows, Dev<float> y) {
  const cpu::Order order = cpu::order_of(w.format);
  const bool arranges = cpu::needs_arranging(w.format, w.in);
  for_row_blocks(rows, cpu::kMaxRows, [&](std::int64_t first, std::int64_t last) {
    const std::int64_t n = last - first;
    const float* from = x.address() + first * w.in;
    if (arranges) from = arrange_rows(order, from, n, w.in, arranged_[static_cast<std::size_t>(order)]);
    const std::int64_t stride = arranges ? cpu::padded(w.in) : w.in;
    std::array<const float*, cpu::kMaxRows> in;
    std::array<float*, cpu::kMaxRows> out;
    for (std::int64_t r = 0; r < n; ++r) {
      in[static_cast<std::size_t>(r)] = from + r * stride;
      out[static_cast<std::size_t>(r)] = y.address() + (first + r) * w.out;
    }
    const std::int64_t unit = n <= cpu::kFusedRows ? cpu::kFusedOutputs : cpu::kPanelOutputs;
    split(round_up_div(w.out, unit), weight_cost(n) * static_cast<double>(unit * w.in),
          [&](int thread, std::int64_t begin, std::int64_t end) {
            cpu::linear_range(w, begin * unit, std::min(end * unit, w.out), in.data(), n, out.data(),
                              kernel_scratch(thread));
          });
  });
}

void CpuBackend::linear_silu(const Matrix& w, Dev<const float> x, std::int64_t rows, float div,
                             Dev<float> y) {
  linear(w, x, rows, y);
  silu_rows(y, rows * w.out, div);
}

}  // namespace sluice::backend

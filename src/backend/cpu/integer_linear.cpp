// Projections of rows that are quantised first.
#include <array>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/split.h"
#include "backend/cpu/work_line.h"

namespace sluice::backend {

namespace {

// Rough nanoseconds on one core.
constexpr double kPerByte = 0.05;      // of weights, from memory
constexpr double kPerProduct = 0.01;   // of a weight and a row
constexpr double kPerQuantised = 0.8;  // an input

}  // namespace

bool CpuBackend::takes_integers(Format format, std::int64_t group, std::int64_t in) const {
  return !exact_ && cpu::has_integer_products(format, group, in);
}

cpu::IntegerRows CpuBackend::IntegerBuffers::get(const cpu::IntegerRows& layout, std::int64_t copies) {
  cpu::IntegerRows out = layout;
  out.pairs = pairs.get(copies * out.pair_count());
  out.scales = scales.get(copies * out.group_count());
  out.sums = sums.get(copies * out.group_count());
  return out;
}

cpu::IntegerRows CpuBackend::quantise_rows(const float* x, const cpu::IntegerRows& layout,
                                           IntegerBuffers& to) {
  const cpu::IntegerRows out = to.get(layout);
  split(out.all_rows(), kPerQuantised * static_cast<double>(out.in),
        [&](int, std::int64_t begin, std::int64_t end) {
          for (std::int64_t r = begin; r < end; ++r) {
            if (r < out.rows) {
              cpu::quantise_groups(x + r * out.in, 0, out.groups(), out, r);
            } else {
              cpu::clear_integer_row(out, r);
            }
          }
        });
  return out;
}

void CpuBackend::integer_linear(std::span<const Projection> parts, const float* x, std::int64_t rows) {
  const std::int64_t in = parts.front().w.in;
  const cpu::Order order = cpu::order_of(parts.front().w.format);
  for_row_blocks(rows, cpu::kMostIntegerRows, [&](std::int64_t first, std::int64_t last) {
    const std::int64_t n = last - first;
    const cpu::IntegerRows q =
        quantise_rows(x + first * in, cpu::integer_rows(order, n, in, parts.front().w.group), integer_x_);
    constexpr std::int64_t kUnit = cpu::kIntegerOutputs;
    const auto part_at = [&](std::int64_t i) -> const Projection& {
      return parts[static_cast<std::size_t>(i)];
    };
    // Few rows cost what their weights' bytes do.
    const auto cost = [&](std::int64_t i) -> std::int64_t { return 8 * bits_of(part_at(i).w.format) + n; };
    const WorkLine work(
        0, static_cast<std::int64_t>(parts.size()),
        [&](std::int64_t i) { return round_up_div(part_at(i).w.out, kUnit); }, cost);
    double nanoseconds = 0;
    for (const Projection& p : parts) {
      nanoseconds += static_cast<double>(p.w.out) * (kPerByte * static_cast<double>(p.w.row_bytes()) +
                                                     kPerProduct * static_cast<double>(n * in));
    }
    deal(work, nanoseconds, [&](int thread, std::int64_t i, std::int64_t from, std::int64_t to) {
      const Projection& p = part_at(i);
      std::array<float*, cpu::kMostIntegerRows> y;
      for (std::int64_t r = 0; r < n; ++r) {
        y[static_cast<std::size_t>(r)] = p.y.address() + (first + r) * p.w.out;
      }
      cpu::integer_range(p.w, from * kUnit, std::min(to * kUnit, p.w.out), q, y.data(),
                         kernel_scratch(thread));
    });
  });
}

}  // namespace sluice::backend

// Projections of rows that are quantised first.
#include <algorithm>
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

void CpuBackend::quantise_rows(const float* x, std::span<const cpu::IntegerRows> tiles) {
  // Rows of all tiles in one line.
  std::int64_t lines = 0;
  for (const cpu::IntegerRows& tile : tiles) lines += tile.all_rows();
  split(lines, kPerQuantised * static_cast<double>(tiles.front().in),
        [&](int, std::int64_t begin, std::int64_t end) {
          std::int64_t first_line = 0;
          std::int64_t first_row = 0;
          for (const cpu::IntegerRows& tile : tiles) {
            const std::int64_t from = std::max(begin - first_line, std::int64_t{0});
            const std::int64_t to = std::min(end - first_line, tile.all_rows());
            for (std::int64_t r = from; r < to; ++r) {
              if (r < tile.rows) {
                cpu::quantise_groups(x + (first_row + r) * tile.in, 0, tile.groups(), tile, r);
              } else {
                cpu::clear_integer_row(tile, r);
              }
            }
            first_line += tile.all_rows();
            first_row += tile.rows;
          }
        });
}

void CpuBackend::integer_linear(std::span<const Projection> parts, const float* x, std::int64_t rows) {
  const Matrix& any = parts.front().w;
  const cpu::Order order = cpu::order_of(any.format);
  for_row_blocks(rows, cpu::kMostIntegerRows, [&](std::int64_t first, std::int64_t last) {
    const std::int64_t n = last - first;
    // Up to twice as many as few rows go in two halves over the same weights, of which the second finds them
    // in the cache.
    const bool halves = n > cpu::kFewRows && n <= 2 * cpu::kFewRows;
    const std::int64_t most = halves ? (n + 1) / 2 : n;
    std::array<cpu::IntegerRows, 2> tiles{integer_x_.get(cpu::integer_rows(order, most, any.in, any.group))};
    if (halves) tiles[1] = integer_x_rest_.get(cpu::integer_rows(order, n - most, any.in, any.group));
    const std::span<const cpu::IntegerRows> used(tiles.data(), halves ? 2 : 1);
    quantise_rows(x + first * any.in, used);
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
                                                     kPerProduct * static_cast<double>(n * any.in));
    }
    deal(work, nanoseconds, [&](int thread, std::int64_t i, std::int64_t from, std::int64_t to) {
      const Projection& p = part_at(i);
      std::array<float*, cpu::kMostIntegerRows> y;
      for (std::int64_t r = 0; r < n; ++r) {
        y[static_cast<std::size_t>(r)] = p.y.address() + (first + r) * p.w.out;
      }
      const std::int64_t stride = halves ? 1 : to - from;
      for (; from < to; from += stride) {
        const std::int64_t end = std::min((from + stride) * kUnit, p.w.out);
        float* const* out = y.data();
        for (const cpu::IntegerRows& tile : used) {
          cpu::integer_range(p.w, from * kUnit, end, tile, out, kernel_scratch(thread));
          out += tile.rows;
        }
      }
    });
  });
}

}  // namespace sluice::backend

// Projections and experts: matrices split over threads by what their weights cost.
#include <algorithm>
#include <array>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/linear_kernels.h"
#include "backend/cpu/row_kernels.h"
#include "backend/cpu/split.h"

namespace sluice::backend {

namespace {

constexpr std::int64_t round_up_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// Calls fn(begin, end) for row blocks of nearly equal size that a kernel takes at once.
template <class Fn>
void for_row_blocks(std::int64_t rows, const Fn& fn) {
  const std::int64_t blocks = round_up_div(rows, cpu::kMaxRows);
  for (std::int64_t b = 0; b < blocks; ++b) fn(rows * b / blocks, rows * (b + 1) / blocks);
}

}  // namespace

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
  const cpu::Order order = cpu::order_of(w.format);
  const bool arranges = cpu::needs_arranging(w.format, w.in);
  for_row_blocks(rows, [&](std::int64_t first, std::int64_t last) {
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

namespace {

/// The entries [first, last) of a batch as one line of work: each is `units` units long, a unit costing as
/// much as decoding its weights and multiplying them with the entry's pairs.
class ExpertWork {
 public:
  ExpertWork(const ExpertBatch& batch, std::int64_t first, std::int64_t last, std::int64_t units)
      : begin_(batch.begin.address()), first_(first), last_(last), units_(units) {
    for (std::int64_t u = first; u < last; ++u) total_ += units * cost(u);
  }

  /// In arbitrary but common units.
  [[nodiscard]] std::int64_t total() const { return total_; }
  [[nodiscard]] std::int64_t pairs(std::int64_t u) const { return begin_[u + 1] - std::int64_t{begin_[u]}; }

  /// fn(u, first unit, last unit) for part `part` of `parts`.
  template <class Fn>
  void for_part(std::int64_t part, std::int64_t parts, const Fn& fn) const {
    const std::int64_t from = total_ * part / parts;
    const std::int64_t to = total_ * (part + 1) / parts;
    std::int64_t at = 0;  // where entry u begins
    for (std::int64_t u = first_; u < last_ && at < to; ++u) {
      const std::int64_t c = cost(u);
      if (c == 0) continue;
      const std::int64_t begin =
          std::clamp(round_up_div(std::max<std::int64_t>(from - at, 0), c), std::int64_t{0}, units_);
      const std::int64_t end = std::clamp(round_up_div(to - at, c), std::int64_t{0}, units_);
      if (begin < end) fn(u, begin, end);
      at += units_ * c;
    }
  }

 private:
  // An entry without pairs may not have been read: it costs nothing and is never touched.
  [[nodiscard]] std::int64_t cost(std::int64_t u) const { return pairs(u) == 0 ? 0 : 2 + pairs(u); }

  const std::uint32_t* begin_;
  std::int64_t first_, last_, units_;
  std::int64_t total_ = 0;
};

}  // namespace

void CpuBackend::experts(const ExpertBatch& batch, std::int64_t first, std::int64_t last,
                         [[maybe_unused]] std::int64_t pairs, Dev<const float> x, Dev<float> y) {
  const auto& g = batch.geometry;
  const std::int64_t pair0 = batch.begin.address()[first];
  const std::int64_t pair_count = batch.begin.address()[last] - pair0;
  if (pair_count == 0) return;
  const std::uint32_t* pair_row = batch.pair_row.address();
  const std::uint32_t* pair_slot = batch.pair_slot.address();

  // x in every order that the entries' formats ask for: all rows, or the pairs' rows where those are fewer.
  std::array<const float*, 3> arranged{};
  const bool by_pair = pair_count < batch.rows;
  const std::int64_t x_stride = cpu::padded(g.hidden);
  for (std::int64_t u = first; u < last; ++u) {
    const Format format = batch.entries.address()[u].format();
    const auto order = static_cast<std::size_t>(cpu::order_of(format));
    const bool used = batch.begin.address()[u] != batch.begin.address()[u + 1];
    if (!used || arranged[order] != nullptr || !cpu::needs_arranging(format, g.hidden)) continue;
    if (!by_pair) {
      arranged[order] =
          arrange_rows(cpu::order_of(format), x.address(), batch.rows, g.hidden, arranged_[order]);
      continue;
    }
    float* to = arranged_[order].get(pair_count * x_stride);
    for (std::int64_t p = 0; p < pair_count; ++p) {
      cpu::arrange(cpu::order_of(format), x.address() + std::int64_t{pair_row[pair0 + p]} * g.hidden,
                   g.hidden, to + p * x_stride);
    }
    arranged[order] = to;
  }
  const auto input = [&](Format format, std::int64_t p) -> const float* {
    const float* from = arranged[static_cast<std::size_t>(cpu::order_of(format))];
    if (from == nullptr) return x.address() + std::int64_t{pair_row[p]} * g.hidden;
    return from + (by_pair ? p - pair0 : std::int64_t{pair_row[p]}) * x_stride;
  };

  // A unit is a chunk of outputs, so that a thread can put its part of the hidden row into the order that
  // `down` reads.
  const std::int64_t h_stride = cpu::padded(g.inter);
  float* gate = expert_gate_.get(pair_count * h_stride);
  float* up = expert_up_.get(pair_count * h_stride);
  const auto for_parts = [&](const ExpertWork& work, double nanoseconds, const auto& fn) {
    const std::int64_t parts = threads_for(nanoseconds, team_.size());
    team_.parallel_for(
        static_cast<std::size_t>(parts), 1, [&](int thread, std::size_t begin, std::size_t end) {
          for (std::size_t part = begin; part < end; ++part) {
            work.for_part(
                static_cast<std::int64_t>(part), parts,
                [&](std::int64_t u, std::int64_t from, std::int64_t to) { fn(thread, u, from, to); });
          }
        });
  };
  const double chunk_cost = kPerWeight * static_cast<double>(cpu::kChunk) / 3;

  const ExpertWork hidden_work(batch, first, last, h_stride / cpu::kChunk);
  for_parts(hidden_work, chunk_cost * static_cast<double>(2 * hidden_work.total() * g.hidden),
            [&](int thread, std::int64_t u, std::int64_t from, std::int64_t to) {
              const ExpertEntry entry = batch.entries.address()[u];
              const RecordParts parts = record_parts({g, entry.format()}, entry.record());
              const std::int64_t o = from * cpu::kChunk;
              const std::int64_t o_end = std::min(to * cpu::kChunk, g.inter);
              const std::int64_t p0 = batch.begin.address()[u];
              for_row_blocks(hidden_work.pairs(u), [&](std::int64_t row, std::int64_t row_end) {
                std::array<const float*, cpu::kMaxRows> in;
                std::array<float*, cpu::kMaxRows> gates;
                std::array<float*, cpu::kMaxRows> ups;
                const std::int64_t n = row_end - row;
                for (std::int64_t i = 0; i < n; ++i) {
                  const std::int64_t p = p0 + row + i;
                  in[static_cast<std::size_t>(i)] = input(entry.format(), p);
                  gates[static_cast<std::size_t>(i)] = gate + (p - pair0) * h_stride;
                  ups[static_cast<std::size_t>(i)] = up + (p - pair0) * h_stride;
                }
                float* scratch = kernel_scratch(thread);
                cpu::linear_range(parts.gate, o, o_end, in.data(), n, gates.data(), scratch);
                cpu::linear_range(parts.up, o, o_end, in.data(), n, ups.data(), scratch);
                for (std::int64_t i = 0; i < n; ++i) {
                  float* row_gate = gates[static_cast<std::size_t>(i)] + o;
                  float* row_up = ups[static_cast<std::size_t>(i)] + o;
                  cpu::silu_multiply_range(row_gate, row_up, o_end - o, row_up);
                  cpu::arrange(cpu::order_of(entry.format()), row_up, o_end - o, row_gate);
                }
              });
            });

  const ExpertWork down_work(batch, first, last, cpu::padded(g.hidden) / cpu::kChunk);
  for_parts(down_work, chunk_cost * static_cast<double>(down_work.total() * g.inter),
            [&](int thread, std::int64_t u, std::int64_t from, std::int64_t to) {
              const ExpertEntry entry = batch.entries.address()[u];
              const RecordParts parts = record_parts({g, entry.format()}, entry.record());
              const std::int64_t p0 = batch.begin.address()[u];
              for_row_blocks(down_work.pairs(u), [&](std::int64_t row, std::int64_t row_end) {
                std::array<const float*, cpu::kMaxRows> in;
                std::array<float*, cpu::kMaxRows> out;
                const std::int64_t n = row_end - row;
                for (std::int64_t i = 0; i < n; ++i) {
                  const std::int64_t p = p0 + row + i;
                  in[static_cast<std::size_t>(i)] = gate + (p - pair0) * h_stride;
                  out[static_cast<std::size_t>(i)] =
                      y.address() +
                      (std::int64_t{pair_row[p]} * batch.slots + std::int64_t{pair_slot[p]}) * g.hidden;
                }
                cpu::linear_range(parts.down, from * cpu::kChunk, std::min(to * cpu::kChunk, g.hidden),
                                  in.data(), n, out.data(), kernel_scratch(thread));
              });
            });
}

}  // namespace sluice::backend

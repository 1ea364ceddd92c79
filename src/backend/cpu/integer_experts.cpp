// Experts of rows that are quantised first.
#include <array>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/expert_work.h"
#include "backend/cpu/row_kernels.h"
#include "backend/cpu/split.h"

namespace sluice::backend {

namespace {

constexpr double kPerWeightAndPair = 0.02;  // rough nanoseconds on one core

/// Rows that lie one after the other, each by itself.
class SingleRows {
 public:
  SingleRows() = default;
  explicit SingleRows(const cpu::IntegerRows& first) : first_(first) {}
  [[nodiscard]] bool there() const { return first_.pairs != nullptr; }
  [[nodiscard]] const cpu::IntegerRows& layout() const { return first_; }
  [[nodiscard]] cpu::IntegerRows row(std::int64_t r) const {
    cpu::IntegerRows out = first_;
    out.pairs += r * first_.pair_count();
    out.scales += r * first_.group_count();
    out.sums += r * first_.group_count();
    return out;
  }

 private:
  cpu::IntegerRows first_;
};

}  // namespace

void CpuBackend::experts(const ExpertBatch& batch, std::int64_t first, std::int64_t last,
                         [[maybe_unused]] std::int64_t pairs, Dev<const float> x, Dev<float> y) {
  const bool integers = takes_integers(Format::kQ4, batch.geometry.group,
                                       std::max(batch.geometry.hidden, batch.geometry.inter));
  bool all = integers;
  for (std::int64_t u = first; u < last && all; ++u) {
    all = pairs_of(batch, u) == 0 || is_quantised(batch.entries.address()[u].format());
  }
  if (all) return integer_experts(batch, first, last, x.address(), y.address());
  if (!integers) return float_experts(batch, first, last, x, y);
  // A batch may mix formats with and without integer products: an entry's way must not depend on its company.
  for (std::int64_t u = first; u < last; ++u) {
    if (pairs_of(batch, u) == 0) continue;
    if (is_quantised(batch.entries.address()[u].format())) {
      integer_experts(batch, u, u + 1, x.address(), y.address());
    } else {
      float_experts(batch, u, u + 1, x, y);
    }
  }
}

void CpuBackend::integer_experts(const ExpertBatch& batch, std::int64_t first, std::int64_t last,
                                 const float* x, float* y) {
  const auto& g = batch.geometry;
  const std::int64_t group = g.group;
  const std::int64_t pair0 = batch.begin.address()[first];
  const std::int64_t pair_count = batch.begin.address()[last] - pair0;
  if (pair_count == 0) return;
  const std::uint32_t* pair_row = batch.pair_row.address();
  const std::uint32_t* pair_slot = batch.pair_slot.address();

  // x and the hidden rows in every order that the entries' formats ask for.
  std::array<SingleRows, 3> inputs{};
  std::array<SingleRows, 3> hidden{};
  for (std::int64_t u = first; u < last; ++u) {
    const cpu::Order order = cpu::order_of(batch.entries.address()[u].format());
    const auto i = static_cast<std::size_t>(order);
    if (pairs_of(batch, u) == 0 || inputs[i].there()) continue;
    inputs[i] = SingleRows(expert_x_[i].get(cpu::integer_rows(order, 1, g.hidden, group), batch.rows));
    hidden[i] = SingleRows(expert_hidden_[i].get(cpu::integer_rows(order, 1, g.inter, group), pair_count));
    split(batch.rows, static_cast<double>(g.hidden), [&](int, std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        cpu::quantise_groups(x + r * g.hidden, 0, g.hidden / group, inputs[i].row(r), 0);
      }
    });
  }
  // Pairs begin .. end - 1 together: from(p) says which of `rows` is pair p's.
  const auto pack = [&](int thread, const SingleRows& rows, std::int64_t begin, std::int64_t end,
                        const auto& from) {
    if (end - begin == 1) return rows.row(from(begin));
    const std::int64_t n = end - begin;
    const cpu::IntegerRows& one = rows.layout();
    const cpu::IntegerRows out =
        packed_[static_cast<std::size_t>(thread)].get(cpu::integer_rows(one.order, n, one.in, one.group));
    for (std::int64_t r = 0; r < n; ++r) cpu::copy_integer_row(rows.row(from(begin + r)), out, r);
    for (std::int64_t r = n; r < out.all_rows(); ++r) cpu::clear_integer_row(out, r);
    return out;
  };

  // A unit is a group of outputs, so that a thread can quantise its part of the hidden rows.
  float* gate = expert_gate_.get(pair_count * g.inter);
  float* up = expert_up_.get(pair_count * g.inter);
  const auto hidden_work = expert_work(batch, first, last, g.inter / group);
  const double unit_cost = kPerWeightAndPair * static_cast<double>(group);
  deal(hidden_work, unit_cost * static_cast<double>(2 * hidden_work.total() * g.hidden),
       [&](int thread, std::int64_t u, std::int64_t from, std::int64_t to) {
         const ExpertEntry entry = batch.entries.address()[u];
         const RecordParts parts = record_parts({g, entry.format()}, entry.record());
         const cpu::Order order = cpu::order_of(entry.format());
         const auto i = static_cast<std::size_t>(order);
         const std::int64_t p0 = batch.begin.address()[u];
         for_row_blocks(pairs_of(batch, u), cpu::integer_row_block(pairs_of(batch, u)),
                        [&](std::int64_t row, std::int64_t row_end) {
                          const std::int64_t n = row_end - row;
                          const cpu::IntegerRows in =
                              pack(thread, inputs[i], p0 + row, p0 + row_end,
                                   [&](std::int64_t p) { return std::int64_t{pair_row[p]}; });
                          std::array<float*, cpu::kMostIntegerRows> gates;
                          std::array<float*, cpu::kMostIntegerRows> ups;
                          for (std::int64_t r = 0; r < n; ++r) {
                            const std::int64_t p = p0 + row + r - pair0;
                            gates[static_cast<std::size_t>(r)] = gate + p * g.inter;
                            ups[static_cast<std::size_t>(r)] = up + p * g.inter;
                          }
                          float* scratch = kernel_scratch(thread);
                          cpu::integer_range(parts.gate, from * group, to * group, in, gates.data(), scratch);
                          cpu::integer_range(parts.up, from * group, to * group, in, ups.data(), scratch);
                          for (std::int64_t r = 0; r < n; ++r) {
                            const std::int64_t o = from * group;
                            float* row_up = ups[static_cast<std::size_t>(r)];
                            cpu::silu_multiply_range(gates[static_cast<std::size_t>(r)] + o, row_up + o,
                                                     (to - from) * group, row_up + o);
                            cpu::quantise_groups(row_up, from, to, hidden[i].row(p0 + row + r - pair0), 0);
                          }
                        });
       });

  const std::int64_t down_units = round_up_div(g.hidden, cpu::kIntegerOutputs);
  const auto down_work = expert_work(batch, first, last, down_units);
  deal(down_work, kPerWeightAndPair * static_cast<double>(cpu::kIntegerOutputs * down_work.total() * g.inter),
       [&](int thread, std::int64_t u, std::int64_t from, std::int64_t to) {
         const ExpertEntry entry = batch.entries.address()[u];
         const RecordParts parts = record_parts({g, entry.format()}, entry.record());
         const auto i = static_cast<std::size_t>(cpu::order_of(entry.format()));
         const std::int64_t p0 = batch.begin.address()[u];
         for_row_blocks(
             pairs_of(batch, u), cpu::integer_row_block(pairs_of(batch, u)),
             [&](std::int64_t row, std::int64_t row_end) {
               const cpu::IntegerRows in =
                   pack(thread, hidden[i], p0 + row, p0 + row_end, [&](std::int64_t p) { return p - pair0; });
               std::array<float*, cpu::kMostIntegerRows> out;
               for (std::int64_t r = 0; r < row_end - row; ++r) {
                 const std::int64_t p = p0 + row + r;
                 out[static_cast<std::size_t>(r)] =
                     y + (std::int64_t{pair_row[p]} * batch.slots + std::int64_t{pair_slot[p]}) * g.hidden;
               }
               cpu::integer_range(parts.down, from * cpu::kIntegerOutputs,
                                  std::min(to * cpu::kIntegerOutputs, g.hidden), in, out.data(),
                                  kernel_scratch(thread));
             });
       });
}

}  // namespace sluice::backend

// Experts with float32 inputs: what --exact and records without integer products use.
#include <array>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/expert_work.h"
#include "backend/cpu/linear_kernels.h"
#include "backend/cpu/row_kernels.h"
#include "backend/cpu/split.h"

namespace sluice::backend {

void CpuBackend::float_experts(const ExpertBatch& batch, std::int64_t first, std::int64_t last,
                               Dev<const float> x, Dev<float> y) {
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
  const double chunk_cost = kPerWeight * static_cast<double>(cpu::kChunk) / 3;

  const auto hidden_work = expert_work(batch, first, last, h_stride / cpu::kChunk);
  deal(hidden_work, chunk_cost * static_cast<double>(2 * hidden_work.total() * g.hidden),
       [&](int thread, std::int64_t u, std::int64_t from, std::int64_t to) {
         const ExpertEntry entry = batch.entries.address()[u];
         const RecordParts parts = record_parts({g, entry.format()}, entry.record());
         const std::int64_t o = from * cpu::kChunk;
         const std::int64_t o_end = std::min(to * cpu::kChunk, g.inter);
         const std::int64_t p0 = batch.begin.address()[u];
         for_row_blocks(pairs_of(batch, u), cpu::kMaxRows, [&](std::int64_t row, std::int64_t row_end) {
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

  const auto down_work = expert_work(batch, first, last, cpu::padded(g.hidden) / cpu::kChunk);
  deal(down_work, chunk_cost * static_cast<double>(down_work.total() * g.inter),
       [&](int thread, std::int64_t u, std::int64_t from, std::int64_t to) {
         const ExpertEntry entry = batch.entries.address()[u];
         const RecordParts parts = record_parts({g, entry.format()}, entry.record());
         const std::int64_t p0 = batch.begin.address()[u];
         for_row_blocks(pairs_of(batch, u), cpu::kMaxRows, [&](std::int64_t row, std::int64_t row_end) {
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
           cpu::linear_range(parts.down, from * cpu::kChunk, std::min(to * cpu::kChunk, g.hidden), in.data(),
                             n, out.data(), kernel_scratch(thread));
         });
       });
}

}  // namespace sluice::backend

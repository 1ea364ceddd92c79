// Router and experts (model.md 3.9).
#include <vector>

#include "backend/scalar/math.h"
#include "backend/scalar/rank.h"
#include "backend/scalar/scalar_backend.h"
#include "backend/scalar/weights.h"

namespace sluice::backend {

void ScalarBackend::router_topk(Dev<const float> logits, std::int64_t rows, std::int64_t n, std::int64_t k,
                                bool renormalise, Dev<std::uint32_t> index, Dev<float> weight) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* row = logits.address() + r * n;
    // Chosen by logit: the softmax keeps the order, but could round two logits to one probability.
    const auto chosen = scalar::top_k(row, n, k);
    if (chosen.empty()) continue;
    const double max = row[chosen[0]];  // NaN only if every logit is
    const auto power = [&](float logit) {
      return std::isnan(logit) ? 0 : std::exp(scalar::below_max(logit, max));
    };
    double total = 0;
    if (renormalise) {
      for (const std::uint32_t i : chosen) total += power(row[i]);
    } else {
      for (std::int64_t i = 0; i < n; ++i) total += power(row[i]);
    }
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      const auto at = r * k + static_cast<std::int64_t>(i);
      index.address()[at] = chosen[i];
      weight.address()[at] = total > 0 ? static_cast<float>(power(row[chosen[i]]) / total) : 0.0F;
    }
  }
}

void ScalarBackend::experts(const ExpertBatch& batch, std::int64_t first, std::int64_t last,
                            [[maybe_unused]] std::int64_t pairs, Dev<const float> x, Dev<float> y) {
  const auto& g = batch.geometry;
  std::vector<float> gate_row(static_cast<std::size_t>(g.hidden));
  std::vector<float> up_row(static_cast<std::size_t>(g.hidden));
  std::vector<float> down_row(static_cast<std::size_t>(g.inter));
  std::vector<float> hidden;  // [pairs of the entry][inter]
  for (std::int64_t u = first; u < last; ++u) {
    const ExpertEntry entry = batch.entries.address()[u];
    const std::int64_t begin = batch.begin.address()[u];
    const std::int64_t count = batch.begin.address()[u + 1] - begin;
    if (count == 0) continue;  // its record may not have been read
    const RecordParts parts = record_parts({g, entry.format()}, entry.record());
    const std::uint32_t* pair_row = batch.pair_row.address() + begin;
    const std::uint32_t* pair_slot = batch.pair_slot.address() + begin;
    hidden.resize(static_cast<std::size_t>(count * g.inter));
    for (std::int64_t o = 0; o < g.inter; ++o) {
      scalar::dequantise_row(parts.gate, o, gate_row);
      scalar::dequantise_row(parts.up, o, up_row);
      for (std::int64_t p = 0; p < count; ++p) {
        const float* in = x.address() + std::int64_t{pair_row[p]} * g.hidden;
        const double gate = scalar::dot(gate_row.data(), in, g.hidden);
        const double up = scalar::dot(up_row.data(), in, g.hidden);
        hidden[static_cast<std::size_t>(p * g.inter + o)] = static_cast<float>(scalar::silu(gate) * up);
      }
    }
    for (std::int64_t o = 0; o < g.hidden; ++o) {
      scalar::dequantise_row(parts.down, o, down_row);
      for (std::int64_t p = 0; p < count; ++p) {
        const std::int64_t to = pair_row[p] * batch.slots + pair_slot[p];
        y.address()[to * g.hidden + o] =
            static_cast<float>(scalar::dot(down_row.data(), hidden.data() + p * g.inter, g.inter));
      }
    }
  }
}

void ScalarBackend::combine_experts(Dev<const float> y, Dev<const float> weight, std::int64_t rows,
                                    std::int64_t slots, std::int64_t width, Dev<float> out) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < width; ++i) {
      double sum = 0;
      for (std::int64_t slot = 0; slot < slots; ++slot) {
        const double factor = weight.address()[r * slots + slot];
        if (factor != 0) sum += factor * y.address()[(r * slots + slot) * width + i];
      }
      out.address()[r * width + i] = static_cast<float>(sum);
    }
  }
}

void ScalarBackend::silu_multiply(Dev<const float> gate, Dev<const float> up, std::int64_t count,
                                  Dev<float> out) {
  for (std::int64_t i = 0; i < count; ++i) {
    out.address()[i] = static_cast<float>(scalar::silu(gate.address()[i]) * up.address()[i]);
  }
}

}  // namespace sluice::backend

// Routed and shared experts (model.md 3.9).
#include <algorithm>
#include <cmath>

#include "model/model.h"

namespace sluice::model {
namespace {

/// What the rows of a step chose, regrouped by expert.
struct Routing {
  std::vector<std::uint32_t> ids;         // the union, ascending
  std::vector<std::uint32_t> first_pair;  // [ids + 1] into the pairs sorted by (expert, row)
  std::vector<std::uint32_t> pair_row, pair_slot;
  std::vector<float> slot_weight;  // [rows][k], a row's experts in ascending id
};

Routing regroup(std::span<const std::uint32_t> index, std::span<const float> weight, std::size_t rows,
                std::size_t k, std::size_t experts) {
  Routing routing;
  routing.slot_weight.resize(rows * k);
  std::vector<std::uint32_t> sorted(index.begin(), index.end());
  std::vector<std::uint32_t> count(experts + 1, 0);
  for (std::size_t r = 0; r < rows; ++r) {
    std::vector<std::uint32_t> order(k);
    for (std::size_t i = 0; i < k; ++i) order[i] = static_cast<std::uint32_t>(i);
    const auto* row = index.data() + r * k;
    std::sort(order.begin(), order.end(),
              [row](std::uint32_t a, std::uint32_t b) { return row[a] < row[b]; });
    for (std::size_t slot = 0; slot < k; ++slot) {
      sorted[r * k + slot] = row[order[slot]];
      routing.slot_weight[r * k + slot] = weight[r * k + order[slot]];
      ++count[row[order[slot]]];
    }
  }
  std::vector<std::uint32_t> place(experts, 0);
  std::uint32_t at = 0;
  for (std::size_t e = 0; e < experts; ++e) {
    place[e] = at;
    if (count[e] == 0) continue;
    routing.ids.push_back(static_cast<std::uint32_t>(e));
    routing.first_pair.push_back(at);
    at += count[e];
  }
  routing.first_pair.push_back(at);
  routing.pair_row.resize(rows * k);
  routing.pair_slot.resize(rows * k);
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t slot = 0; slot < k; ++slot) {
      const std::uint32_t pair = place[sorted[r * k + slot]]++;
      routing.pair_row[pair] = static_cast<std::uint32_t>(r);
      routing.pair_slot[pair] = static_cast<std::uint32_t>(slot);
    }
  }
  return routing;
}

template <class T>
std::span<std::byte> bytes_of(std::vector<T>& v) {
  return std::as_writable_bytes(std::span(v));
}

}  // namespace

Result<void> Model::moe(const MoeWeights& weights, std::int64_t record_layer, std::int64_t rows) {
  Scratch& s = *scratch_;
  const auto& c = config();
  const std::int64_t k = c.experts_per_token;

  backend_.linear(weights.router, s.mixed, rows, s.router_logits);
  backend_.router_topk(s.router_logits, rows, c.experts, k, c.norm_topk, s.router_index, s.router_weight);
  std::vector<std::uint32_t> index(static_cast<std::size_t>(rows * k));
  std::vector<float> weight(index.size());
  backend_.download(bytes_of(index), Dev(reinterpret_cast<const std::byte*>(s.router_index.address())));
  backend_.download(bytes_of(weight), Dev(reinterpret_cast<const std::byte*>(s.router_weight.address())));
  const Routing routing = regroup(index, weight, static_cast<std::size_t>(rows), static_cast<std::size_t>(k),
                                  static_cast<std::size_t>(c.experts));
  SLUICE_ASSIGN(const auto lease, experts_->acquire(record_layer, routing.ids));
  // However this ends, the device must be done with the records before the lease is given back.
  struct Wait {
    backend::Backend& backend;
    ~Wait() { backend.synchronise(); }
  } const wait{backend_};

  // Pairs follow the lease's order: what is resident comes first.
  const auto order = lease->order();
  std::vector<std::uint32_t> begin{0};
  std::vector<std::uint32_t> pair_row;
  std::vector<std::uint32_t> pair_slot;
  for (const std::uint32_t place : order) {
    for (std::uint32_t p = routing.first_pair[place]; p < routing.first_pair[place + 1]; ++p) {
      pair_row.push_back(routing.pair_row[p]);
      pair_slot.push_back(routing.pair_slot[p]);
    }
    begin.push_back(static_cast<std::uint32_t>(pair_row.size()));
  }
  upload(s.entries, lease->entries());
  upload(s.entry_begin, std::span<const std::uint32_t>(begin));
  upload(s.pair_row, std::span<const std::uint32_t>(pair_row));
  upload(s.pair_slot, std::span<const std::uint32_t>(pair_slot));
  upload(s.slot_weight, std::span<const float>(routing.slot_weight));

  const backend::ExpertBatch batch{
      source_->record_layout().geometry, rows, k, s.entries, s.entry_begin, s.pair_row, s.pair_slot};
  const auto resident = static_cast<std::int64_t>(lease->resident());
  const auto all = static_cast<std::int64_t>(order.size());
  if (resident > 0) backend_.experts(batch, 0, resident, begin[lease->resident()], s.mixed, s.expert_out);

  // The shared expert is computed while late records are read.
  backend_.linear(weights.shared_gate, s.mixed, rows, s.shared_gate);
  backend_.linear(weights.shared_up, s.mixed, rows, s.shared_up);
  backend_.silu_multiply(s.shared_gate, s.shared_up, rows * c.shared_inter, s.shared_gate);
  backend_.linear(weights.shared_down, s.shared_gate, rows, s.shared_out);

  if (resident < all) {
    SLUICE_TRY(lease->wait_late());
    backend_.experts(batch, resident, all, begin.back() - begin[lease->resident()], s.mixed, s.expert_out);
  }
  if (observer_) {
    ExpertStep step{record_layer, rows, s.mixed, {}, lease->entries(), batch.geometry, begin, pair_row};
    for (const std::uint32_t place : order) step.ids.push_back(routing.ids[place]);
    SLUICE_TRY(observer_(step));
  }
  backend_.combine_experts(s.expert_out, s.slot_weight, rows, k, c.hidden, s.sub_out);
  add_shared(weights, rows);
  return {};
}

// sub_out += sigmoid(gate . x) * shared expert. Released checkpoints keep the gate in bfloat16; in any other
// form it is a projection like all others, its sigmoid a row's weight.
void Model::add_shared(const MoeWeights& weights, std::int64_t rows) {
  Scratch& s = *scratch_;
  const std::int64_t hidden = config().hidden;
  const Matrix& gate = weights.shared_scalar;
  if (gate.format == backend::Format::kBf16) {
    const Dev bf16(reinterpret_cast<const std::uint16_t*>(gate.data.address()));
    backend_.shared_add_rows(s.mixed, s.shared_out, bf16, rows, hidden, s.sub_out);
    return;
  }
  backend_.linear(gate, s.mixed, rows, s.shared_weight);
  std::vector<float> weight(static_cast<std::size_t>(rows));
  backend_.download(bytes_of(weight), Dev(reinterpret_cast<const std::byte*>(s.shared_weight.address())));
  for (float& w : weight) w = static_cast<float>(1 / (1 + std::exp(-static_cast<double>(w))));
  upload(s.shared_weight, std::span<const float>(weight));
  backend_.scatter_add_rows(s.shared_out, s.iota, s.shared_weight, rows, hidden, s.sub_out);
}

}  // namespace sluice::model

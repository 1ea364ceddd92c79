// Routed and shared experts (model.md 3.9).
#include <algorithm>
#include <cmath>

#include "model/model.h"

namespace sluice::model {

/// What the rows of a step chose, regrouped by expert.
struct Model::Routing {
  std::vector<std::uint32_t> ids;         // the union, ascending
  std::vector<std::uint32_t> first_pair;  // [ids + 1] into the pairs sorted by (expert, row)
  std::vector<std::uint32_t> pair_row, pair_slot;
  std::vector<float> slot_weight;  // [rows][k], a row's experts in ascending id
};

Model::Routing Model::regroup(std::span<const std::uint32_t> index, std::span<const float> weight,
                              std::size_t rows, std::size_t k, std::size_t experts) {
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

namespace {

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
  upload(s.slot_weight, std::span<const float>(routing.slot_weight));

  // What one lease can hold, is computed together; the next lease's records are read meanwhile. Outputs go to
  // the places of their rows and slots, so that nothing depends on how the union is split.
  const std::span<const std::uint32_t> ids(routing.ids);
  const std::size_t most = experts_->most_at_once();
  const experts::Use use = rows > kStepRows ? experts::Use::kPrefill : experts::Use::kDecode;
  SLUICE_ASSIGN(auto lease, experts_->acquire(record_layer, ids.first(std::min(most, ids.size())), use));
  for (std::size_t first = 0; first < ids.size();) {
    const std::size_t count = lease->order().size();
    std::unique_ptr<experts::Lease> next;
    if (const auto rest = ids.subspan(first + count); !rest.empty()) {
      SLUICE_ASSIGN(next, experts_->acquire(record_layer, rest.first(std::min(most, rest.size())), use));
    }
    SLUICE_TRY(run_experts(weights, record_layer, *lease, routing, first, rows));
    first += count;
    lease = std::move(next);
  }
  backend_.combine_experts(s.expert_out, s.slot_weight, rows, k, c.hidden, s.sub_out);
  add_shared(weights, rows);
  return {};
}

/// The experts of a lease, ids `first` on of the routing; with the first of them the shared expert.
Result<void> Model::run_experts(const MoeWeights& weights, std::int64_t record_layer, experts::Lease& lease,
                                const Routing& routing, std::size_t first, std::int64_t rows) {
  Scratch& s = *scratch_;
  // However this ends, the device must be done with the records before the lease is given back.
  struct Wait {
    backend::Backend& backend;
    ~Wait() { backend.synchronise(); }
  } const wait{backend_};

  // Pairs follow the lease's order: what is resident comes first.
  const auto order = lease.order();
  std::vector<std::uint32_t> begin{0};
  std::vector<std::uint32_t> pair_row;
  std::vector<std::uint32_t> pair_slot;
  for (const std::uint32_t place : order) {
    for (std::uint32_t p = routing.first_pair[first + place]; p < routing.first_pair[first + place + 1];
         ++p) {
      pair_row.push_back(routing.pair_row[p]);
      pair_slot.push_back(routing.pair_slot[p]);
    }
    begin.push_back(static_cast<std::uint32_t>(pair_row.size()));
  }
  upload(s.entries, lease.entries());
  upload(s.entry_begin, std::span<const std::uint32_t>(begin));
  upload(s.pair_row, std::span<const std::uint32_t>(pair_row));
  upload(s.pair_slot, std::span<const std::uint32_t>(pair_slot));

  const backend::ExpertBatch batch{source_->record_layout().geometry,
                                   rows,
                                   config().experts_per_token,
                                   s.entries,
                                   s.entry_begin,
                                   s.pair_row,
                                   s.pair_slot};
  const auto resident = static_cast<std::int64_t>(lease.resident());
  const auto all = static_cast<std::int64_t>(order.size());
  if (resident > 0) backend_.experts(batch, 0, resident, begin[lease.resident()], s.mixed, s.expert_out);
  // The shared expert is computed while late records are read.
  if (first == 0) shared_expert(weights, rows);
  if (resident < all) {
    SLUICE_TRY(lease.wait_late());
    backend_.experts(batch, resident, all, begin.back() - begin[lease.resident()], s.mixed, s.expert_out);
  }
  if (!observer_) return {};
  ExpertStep step{record_layer,    rows,           s.mixed, first == 0, {},
                  lease.entries(), batch.geometry, begin,   pair_row};
  for (const std::uint32_t place : order) step.ids.push_back(routing.ids[first + place]);
  return observer_(step);
}

void Model::shared_expert(const MoeWeights& weights, std::int64_t rows) {
  Scratch& s = *scratch_;
  backend_.linear(weights.shared_gate, s.mixed, rows, s.shared_gate);
  backend_.linear(weights.shared_up, s.mixed, rows, s.shared_up);
  backend_.silu_multiply(s.shared_gate, s.shared_up, rows * config().shared_inter, s.shared_gate);
  backend_.linear(weights.shared_down, s.shared_gate, rows, s.shared_out);
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

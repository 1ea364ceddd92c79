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
  std::vector<float> most;         // [ids] the largest weight that one gives it
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
  for (std::size_t i = 0; i < routing.ids.size(); ++i) {
    float most = 0;
    for (std::uint32_t p = routing.first_pair[i]; p < routing.first_pair[i + 1]; ++p) {
      most = std::max(most, routing.slot_weight[routing.pair_row[p] * k + routing.pair_slot[p]]);
    }
    routing.most.push_back(most);
  }
  return routing;
}

namespace {

template <class T>
std::span<std::byte> bytes_of(std::vector<T>& v) {
  return std::as_writable_bytes(std::span(v));
}

}  // namespace

std::vector<std::uint32_t> Model::choose(const Matrix& router, Dev<const float> mixed, std::int64_t rows) {
  Scratch& s = *scratch_;
  const std::int64_t k = config().experts_per_token;
  backend_.linear(router, mixed, rows, s.router_logits);
  backend_.router_topk(s.router_logits, rows, config().experts, k, config().norm_topk, s.router_index,
                       s.router_weight);
  std::vector<std::uint32_t> index(static_cast<std::size_t>(rows * k));
  backend_.download(bytes_of(index), Dev(reinterpret_cast<const std::byte*>(s.router_index.address())));
  return index;
}

Model::Routing Model::route(const MoeWeights& weights, std::int64_t rows) {
  Scratch& s = *scratch_;
  const std::vector<std::uint32_t> index = choose(weights.router, s.mixed, rows);
  std::vector<float> weight(index.size());
  backend_.download(bytes_of(weight), Dev(reinterpret_cast<const std::byte*>(s.router_weight.address())));
  return regroup(index, weight, static_cast<std::size_t>(rows),
                 static_cast<std::size_t>(config().experts_per_token),
                 static_cast<std::size_t>(config().experts));
}

// The experts come piece by piece, what is in memory first. Outputs go to the places of their rows and slots,
// so that nothing depends on the order in which they come.
Result<void> Model::moe(const LayerWeights& layer, std::int64_t record_layer, std::int64_t rows,
                        Dev<float> wide, bool& pending) {
  using experts::Part;
  if (backend_.has_moe() && !observer_ && !count_experts_ && experts_->table(record_layer)) {
    return moe_on_device(layer, record_layer, rows, wide, pending);
  }
  Scratch& s = *scratch_;
  const auto& c = config();
  const MoeWeights& weights = layer.moe;
  Routing routing;
  {
    const auto timer = timed(Part::kRouter, record_layer);
    hyper_read(layer.mlp_hyper, rows, wide, pending);
    routing = route(weights, rows);
  }
  // No records are read for the choices of a device that has failed.
  SLUICE_TRY(backend_.status());
  const experts::Use use = use_of(rows);
  SLUICE_ASSIGN(const auto visit, experts_->visit({record_layer, routing.ids, routing.most, use}));
  // However this ends, the device must be done with the records before they are given back.
  const auto finish = [&] {
    if (!visit->asynchronous()) backend_.synchronise();
  };
  struct Wait {
    const decltype(finish)& now;
    ~Wait() { now(); }
  } const wait{finish};

  // Decoding: the next layer's experts are guessed at once, so that the drive always has something to do.
  // A prefill's are all of them: their reads follow when this layer's have begun.
  bool guessed = false;
  const auto guess = [&] {
    if (guessed || !visit->all_started()) return;
    guessed = true;
    if (use == experts::Use::kDecode) {
      predict(record_layer + 1, rows);
    } else {
      predict_all(record_layer + 1, rows);
    }
  };
  bool first = true;
  bool shared = false;
  while (true) {
    guess();
    // There is nothing to do but wait for records once the shared expert is computed.
    SLUICE_ASSIGN(const auto places, visit->next(shared));
    if (!places.empty()) {
      const auto timer = timed(shared ? Part::kLateExperts : Part::kResidentExperts, record_layer);
      SLUICE_TRY(run_experts(record_layer, *visit, places, routing, first, rows));
      first = false;
      finish();
    } else if (!shared) {
      const auto timer = timed(Part::kSharedExpert, record_layer);
      shared = true;
      shared_expert(weights, rows);
      finish();
    } else {
      break;
    }
  }
  if (!visit->dropped().empty())
    drop(routing, visit->dropped(), static_cast<std::size_t>(c.experts_per_token));
  upload(s.slot_weight, std::span<const float>(routing.slot_weight));
  backend_.combine_experts(s.expert_out, s.slot_weight, rows, c.experts_per_token, c.hidden, s.sub_out);
  add_shared(weights, rows);
  return {};
}

// All records are in the device's memory: it goes from the router to the sum without the host.
Result<void> Model::moe_on_device(const LayerWeights& layer, std::int64_t record_layer, std::int64_t rows,
                                  Dev<float> wide, bool& pending) {
  Scratch& s = *scratch_;
  const auto& c = config();
  const std::int64_t k = c.experts_per_token;
  hyper_read(layer.mlp_hyper, rows, wide, pending);
  const MoeWeights& w = layer.moe;
  backend::Backend::Moe moe{w.router, w.shared_gate, w.shared_up, w.shared_down, w.shared_scalar};
  moe.table = experts_->table(record_layer);
  moe.experts = c.experts;
  moe.renormalise = c.norm_topk;
  moe.grouped.batch = {source_->record_layout().geometry,
                       rows,
                       k,
                       s.entries,
                       s.entry_begin,
                       s.pair_row,
                       s.pair_slot,
                       formats_of()};
  moe.grouped.most = std::min(c.experts, rows * k);
  moe.grouped.entries = s.entries;
  moe.grouped.begin = s.entry_begin;
  moe.grouped.pair_row = s.pair_row;
  moe.grouped.pair_slot = s.pair_slot;
  moe.grouped.slot_weight = s.slot_weight;
  moe.router_logits = s.router_logits;
  moe.router_index = s.router_index;
  moe.router_weight = s.router_weight;
  moe.expert_out = s.expert_out;
  moe.gate = s.shared_gate;
  moe.up = s.shared_up;
  moe.shared_out = s.shared_out;
  moe.shared_weight = s.shared_weight;
  backend_.moe(moe, s.mixed, s.sub_out);
  return {};
}

/// The formats that this model's records may have.
std::uint32_t Model::formats_of() const {
  std::uint32_t formats = 0;
  for (const auto& layout : source_->record_layouts()) formats |= 1U << static_cast<unsigned>(layout.format);
  return formats;
}

/// Records at some places of the routing's ids.
Result<void> Model::run_experts(std::int64_t record_layer, const experts::Visit& visit,
                                std::span<const std::uint32_t> places, const Routing& routing, bool first,
                                std::int64_t rows) {
  Scratch& s = *scratch_;
  std::vector<std::uint32_t> begin{0};
  std::vector<std::uint32_t> pair_row;
  std::vector<std::uint32_t> pair_slot;
  for (const std::uint32_t place : places) {
    for (std::uint32_t p = routing.first_pair[place]; p < routing.first_pair[place + 1]; ++p) {
      pair_row.push_back(routing.pair_row[p]);
      pair_slot.push_back(routing.pair_slot[p]);
    }
    begin.push_back(static_cast<std::uint32_t>(pair_row.size()));
  }
  upload(s.entries, visit.entries());
  upload(s.entry_begin, std::span<const std::uint32_t>(begin));
  upload(s.pair_row, std::span<const std::uint32_t>(pair_row));
  upload(s.pair_slot, std::span<const std::uint32_t>(pair_slot));

  const backend::ExpertBatch batch{source_->record_layout().geometry,
                                   rows,
                                   config().experts_per_token,
                                   s.entries,
                                   s.entry_begin,
                                   s.pair_row,
                                   s.pair_slot,
                                   formats_of()};
  backend_.experts(batch, 0, static_cast<std::int64_t>(places.size()), begin.back(), s.mixed, s.expert_out);
  if (!observer_) return {};
  ExpertStep step{record_layer, rows, s.mixed, first, {}, visit.entries(), batch.geometry, begin, pair_row};
  for (const std::uint32_t place : places) step.ids.push_back(routing.ids[place]);
  return observer_(step);
}

// What is left out counts nothing; a row's other weights grow so that their sum stays what it was.
void Model::drop(Routing& routing, std::span<const std::uint32_t> places, std::size_t k) {
  std::vector<float> lost(routing.slot_weight.size() / k, 0);
  for (const std::uint32_t place : places) {
    for (std::uint32_t p = routing.first_pair[place]; p < routing.first_pair[place + 1]; ++p) {
      float& weight = routing.slot_weight[routing.pair_row[p] * k + routing.pair_slot[p]];
      lost[routing.pair_row[p]] += weight;
      weight = 0;
    }
  }
  for (std::size_t row = 0; row < lost.size(); ++row) {
    if (lost[row] == 0) continue;
    float left = 0;
    for (std::size_t slot = 0; slot < k; ++slot) left += routing.slot_weight[row * k + slot];
    if (left == 0) continue;  // the row keeps its shared expert
    for (std::size_t slot = 0; slot < k; ++slot) {
      routing.slot_weight[row * k + slot] *= (left + lost[row]) / left;
    }
  }
}

void Model::shared_expert(const MoeWeights& weights, std::int64_t rows) {
  Scratch& s = *scratch_;
  backend_.linear(weights.shared_gate, s.mixed, rows, s.shared_gate);
  backend_.linear(weights.shared_up, s.mixed, rows, s.shared_up);
  backend_.silu_multiply(s.shared_gate, s.shared_up, rows * config().shared_inter, s.shared_gate);
  backend_.linear(weights.shared_down, s.shared_gate, rows, s.shared_out);
}

// sub_out += sigmoid(gate . x) * shared expert.
void Model::add_shared(const MoeWeights& weights, std::int64_t rows) {
  Scratch& s = *scratch_;
  backend_.linear(weights.shared_scalar, s.mixed, rows, s.shared_weight);
  backend_.gated_add_rows(s.shared_out, s.shared_weight, rows, config().hidden, s.sub_out);
}

}  // namespace sluice::model

// Guessing which experts the next layer will want, so that their records are read meanwhile.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "model/model.h"

namespace sluice::model {

experts::Use Model::use_of(std::int64_t rows) {
  return rows > kStepRows ? experts::Use::kPrefill : experts::Use::kDecode;
}

// The next layer's router on the residual as it is now: attention's output is in it, this layer's experts' is
// not, and the next layer's attention is still to come. Nothing of the step is changed.
void Model::predict_next(std::int64_t record_layer, experts::Use use, std::int64_t rows) {
  const std::int64_t next = record_layer + 1;
  // The draft head follows the last layer; its input is made in between.
  if (next >= config().layer_count() || !experts_->wants_prediction(next, use)) return;
  const auto experts = static_cast<std::size_t>(config().experts);
  const auto k = static_cast<std::size_t>(config().experts_per_token);
  if (use == experts::Use::kPrefill) {
    // A long chunk wants nearly all of them; of a short one little can be foreseen without its price.
    constexpr double kNearlyAll = 0.75;
    const double missed = std::pow(1 - static_cast<double>(k) / static_cast<double>(experts), rows);
    if (1 - missed < kNearlyAll) return;
    std::vector<std::uint32_t> all(experts);
    std::iota(all.begin(), all.end(), 0U);
    experts_->predict(next, all, use);
    return;
  }

  Scratch& s = *scratch_;
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(next)];
  const HyperWeights& hyper = weights.mlp_hyper;
  backend_.norm_prepare(wide_shape(rows), {}, {}, s.wide, hyper.norm, config().norm_eps, s.ahead_normed,
                        nullptr);
  backend_.linear_silu(hyper.down, s.ahead_normed, rows, static_cast<float>(config().streams), s.ahead_low);
  backend_.linear(hyper.up, s.ahead_low, rows, s.ahead_gate);
  backend_.hc_mix(wide_shape(rows), s.ahead_gate, s.ahead_normed, s.ahead_mixed);
  backend_.linear(weights.moe.router, s.ahead_mixed, rows, s.router_logits);
  backend_.router_topk(s.router_logits, rows, config().experts, config().experts_per_token,
                       config().norm_topk, s.router_index, s.router_weight);
  std::vector<std::uint32_t> index(static_cast<std::size_t>(rows) * k);
  backend_.download(std::as_writable_bytes(std::span(index)),
                    Dev(reinterpret_cast<const std::byte*>(s.router_index.address())));
  // Every row's first choice, then every row's second: the likeliest first.
  std::vector<std::uint32_t> likely;
  for (std::size_t place = 0; place < k; ++place) {
    for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
      const std::uint32_t id = index[row * k + place];
      if (std::find(likely.begin(), likely.end(), id) == likely.end()) likely.push_back(id);
    }
  }
  experts_->predict(next, likely, use);
}

}  // namespace sluice::model

// Guessing which experts a layer will want, so that their records are read before it comes.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "model/model.h"

namespace sluice::model {

// The layer's router on the residual as it is now. A layer's experts are guessed twice: while the layer
// before waits for its own, which leaves much time and lacks the most (the outputs of those and of
// attention), and before its own attention, whose output is then all that is lacking. Nothing of the step is
// changed.
void Model::predict(std::int64_t index, std::int64_t rows) {
  // The draft head follows the last layer; its input is made in between.
  if (index >= config().layer_count() || !experts_->wants_prediction(index, experts::Use::kDecode)) return;
  const auto timer = timed(experts::Part::kLookahead, index);
  Scratch& s = *scratch_;
  const auto k = static_cast<std::size_t>(config().experts_per_token);
  const LayerWeights& weights = weights_.layers[static_cast<std::size_t>(index)];
  const HyperWeights& hyper = weights.mlp_hyper;
  backend_.norm_prepare(wide_shape(rows), {}, {}, s.wide, hyper.norm, config().norm_eps, s.ahead_normed,
                        nullptr);
  mix(hyper, rows, {s.ahead_normed, s.ahead_low, s.ahead_gate, s.ahead_mixed});
  const std::vector<std::uint32_t> chosen = choose(weights.moe.router, s.ahead_mixed, rows);
  // Every row's first choice, then every row's second: the likeliest first.
  std::vector<std::uint32_t> likely;
  for (std::size_t place = 0; place < k; ++place) {
    for (std::size_t row = 0; row < static_cast<std::size_t>(rows); ++row) {
      const std::uint32_t id = chosen[row * k + place];
      if (std::find(likely.begin(), likely.end(), id) == likely.end()) likely.push_back(id);
    }
  }
  experts_->predict(index, likely, experts::Use::kDecode);
}

// A long chunk wants nearly all experts of a layer; of a short one little can be foreseen without its price.
void Model::predict_all(std::int64_t index, std::int64_t rows) {
  if (index >= config().layer_count() || !experts_->wants_prediction(index, experts::Use::kPrefill)) return;
  constexpr double kNearlyAll = 0.75;
  const auto experts = static_cast<double>(config().experts);
  const double missed = std::pow(1 - static_cast<double>(config().experts_per_token) / experts, rows);
  if (1 - missed < kNearlyAll) return;
  std::vector<std::uint32_t> all(static_cast<std::size_t>(config().experts));
  std::iota(all.begin(), all.end(), 0U);
  experts_->predict(index, all, experts::Use::kPrefill);
}

}  // namespace sluice::model

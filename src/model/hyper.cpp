// Hyper-connections: reading the wide residual and writing back to it (model.md 3.3).
#include <utility>

#include "model/model.h"

namespace sluice::model {

void Model::flush(std::int64_t rows, Dev<float> wide, bool& pending) {
  if (!pending) return;
  backend_.inject(wide_shape(rows), scratch_->sub_out, scratch_->inject_gate, wide);
  pending = false;
}

void Model::mix(const HyperWeights& weights, std::int64_t rows, const MixBuffers& to) {
  backend_.linear_silu(weights.down, to.normed, rows, static_cast<float>(config().streams), to.low);
  backend_.linear(weights.up, to.low, rows, to.gate);
  backend_.hc_mix(wide_shape(rows), to.gate, to.normed, to.mixed);
}

// What is pending was gated by the read before it: each read leaves its gates in the other place.
void Model::hyper_read(const HyperWeights& weights, std::int64_t rows, Dev<float> wide, bool& pending) {
  Scratch& s = *scratch_;
  const Dev<const float> out = pending ? Dev<const float>(s.sub_out) : Dev<const float>();
  const Dev<const float> gate = pending ? Dev<const float>(s.inject_gate) : Dev<const float>();
  pending = false;
  backend_.hyper_read(wide_shape(rows), out, gate, wide,
                      {weights.down, weights.up, weights.inject, weights.norm, config().norm_eps, s.normed,
                       s.low, s.gate_wide, s.mixed, s.next_inject_gate});
  std::swap(s.inject_gate, s.next_inject_gate);
}

}  // namespace sluice::model

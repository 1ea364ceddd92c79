// Hyper-connections: reading the wide residual and writing back to it (model.md 3.3).
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

void Model::hyper_read(const HyperWeights& weights, std::int64_t rows, Dev<float> wide, bool& pending) {
  Scratch& s = *scratch_;
  const Dev<const float> out = pending ? Dev<const float>(s.sub_out) : Dev<const float>();
  const Dev<const float> gate = pending ? Dev<const float>(s.inject_gate) : Dev<const float>();
  backend_.norm_prepare(wide_shape(rows), out, gate, wide, weights.norm, config().norm_eps, s.normed,
                        nullptr);
  pending = false;
  mix(weights, rows, {s.normed, s.low, s.gate_wide, s.mixed});
  if (weights.inject.out > 0) backend_.linear(weights.inject, s.normed, rows, s.inject_gate);
}

}  // namespace sluice::model

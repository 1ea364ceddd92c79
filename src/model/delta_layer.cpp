// Gated DeltaNet (model.md 3.8).
#include "model/model.h"

namespace sluice::model {

void Model::delta_layer(const DeltaWeights& weights, std::int64_t index, Runs runs, std::int64_t rows) {
  Scratch& s = *scratch_;
  const auto& c = config();
  const std::int64_t channels = c.linear_conv_width();
  const std::int64_t heads = c.linear_value_heads;
  const std::int64_t values = c.linear_v_width();
  const backend::DeltaShape shape{c.linear_key_heads, heads, c.linear_key_dim, c.linear_value_dim};

  const backend::Backend::Projection parts[] = {
      {weights.qkv, s.qkv}, {weights.z, s.z}, {weights.a, s.a}, {weights.b, s.b}};
  backend_.linear_many(parts, s.mixed, rows);
  const auto gate =
      c.output_gate == spec::OutputGate::kSigmoid ? backend::GateKind::kSigmoid : backend::GateKind::kSilu;
  for (const Run& run : runs) {
    DeltaState& state = run.state->delta(index);
    const int current = run.state->current();
    // A step that may be taken back in part is replayed from these.
    const bool kept = run.rows <= run.state->step_rows();
    backend::Backend::DeltaStep step;
    step.shape = shape;
    step.kernel = c.linear_conv_kernel;
    step.base = run.base;
    step.rows = run.rows;
    step.qkv = s.qkv + run.first * channels;
    step.a = s.a + run.first * heads;
    step.b = s.b + run.first * heads;
    step.z = s.z + run.first * values;
    step.conv = weights.conv;
    step.a_log = weights.a_log;
    step.dt_bias = weights.dt_bias;
    step.norm = weights.norm;
    step.eps = c.norm_eps;
    step.gate = gate;
    step.ring = state.conv;
    step.state_in = state.state[current];
    step.state_out = state.state[1 - current];
    step.conv_out = kept ? state.step_qkv : s.conv_out + run.first * channels;
    step.decay = kept ? state.step_decay : s.decay + run.first * heads;
    step.beta = kept ? state.step_beta : s.beta + run.first * heads;
    step.y = s.delta_y + run.first * values;
    step.out = s.delta_out + run.first * values;
    backend_.delta_step(step);
  }
  backend_.linear(weights.out, s.delta_out, rows, s.sub_out);
}

}  // namespace sluice::model

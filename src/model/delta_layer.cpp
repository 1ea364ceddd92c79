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

  backend_.linear(weights.qkv, s.mixed, rows, s.qkv);
  backend_.linear(weights.z, s.mixed, rows, s.z);
  backend_.linear(weights.a, s.mixed, rows, s.a);
  backend_.linear(weights.b, s.mixed, rows, s.b);
  backend_.delta_gates(s.a, s.b, weights.a_log, weights.dt_bias, rows, heads, s.decay, s.beta);
  for (const Run& run : runs) {
    DeltaState& state = run.state->delta(index);
    const int current = run.state->current();
    const auto conv = s.conv_out + run.first * channels;
    const auto decay = s.decay + run.first * heads;
    const auto beta = s.beta + run.first * heads;
    backend_.causal_conv({channels, c.linear_conv_kernel, 1}, s.qkv + run.first * channels, weights.conv,
                         state.conv, run.base, run.rows, {}, conv);
    if (run.rows <= run.state->step_rows()) {
      copy_floats(state.step_qkv, conv, run.rows * channels);
      copy_floats(state.step_decay, decay, run.rows * heads);
      copy_floats(state.step_beta, beta, run.rows * heads);
    }
    backend_.delta_scan(shape, conv, decay, beta, run.rows, state.state[current], state.state[1 - current],
                        s.delta_y + run.first * values);
  }
  const auto gate =
      c.output_gate == spec::OutputGate::kSigmoid ? backend::GateKind::kSigmoid : backend::GateKind::kSilu;
  backend_.delta_gate_norm(s.delta_y, s.z, weights.norm, c.norm_eps, gate, rows, heads, c.linear_value_dim,
                           s.delta_out);
  backend_.linear(weights.out, s.delta_out, rows, s.sub_out);
}

}  // namespace sluice::model

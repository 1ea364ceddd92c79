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
  for (const Run& run : runs) {
    DeltaState& state = run.state->delta(index);
    const int current = run.state->current();
    // A step that may be taken back in part is replayed from these.
    const bool kept = run.rows <= run.state->step_rows();
    const auto conv = kept ? state.step_qkv : s.conv_out + run.first * channels;
    const auto decay = kept ? state.step_decay : s.decay + run.first * heads;
    const auto beta = kept ? state.step_beta : s.beta + run.first * heads;
    backend_.delta_gates(s.a + run.first * heads, s.b + run.first * heads, weights.a_log, weights.dt_bias,
                         run.rows, heads, decay, beta);
    backend_.causal_conv({channels, c.linear_conv_kernel, 1}, s.qkv + run.first * channels, weights.conv,
                         state.conv, run.base, run.rows, {}, conv);
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

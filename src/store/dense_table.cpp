#include "store/dense_table.h"

#include <fmt/format.h>

#include <utility>

namespace sluice::store {
namespace {

class Table {
 public:
  explicit Table(const spec::ModelConfig& config) : c_(config) {}

  void add(std::string name, DenseKind kind, std::vector<std::int64_t> shape) {
    list_.push_back({std::move(name), kind, std::move(shape)});
  }
  void matrix(std::string name, std::int64_t out, std::int64_t in) {
    add(std::move(name), DenseKind::kMatrix, {out, in});
  }
  void norm(std::string name, std::int64_t n) { add(std::move(name), DenseKind::kNorm, {n}); }

  void hyper(const std::string& prefix, bool inject) {
    norm(prefix + "hc_norm", c_.wide());
    matrix(prefix + "input_mix_weight_down", c_.hc_lowrank, c_.wide());
    matrix(prefix + "input_mix_weight_up", c_.wide(), c_.hc_lowrank);
    if (inject) matrix(prefix + "block_inject_weight", c_.streams, c_.wide());
  }

  void linear(const std::string& prefix) {
    matrix(prefix + "in_proj_qkv", c_.linear_conv_width(), c_.hidden);
    matrix(prefix + "in_proj_z", c_.linear_v_width(), c_.hidden);
    matrix(prefix + "in_proj_b", c_.linear_value_heads, c_.hidden);
    matrix(prefix + "in_proj_a", c_.linear_value_heads, c_.hidden);
    add(prefix + "conv1d", DenseKind::kConv, {c_.linear_conv_width(), c_.linear_conv_kernel});
    add(prefix + "A_log", DenseKind::kVector, {c_.linear_value_heads});
    add(prefix + "dt_bias", DenseKind::kVector, {c_.linear_value_heads});
    // The gated norm's weight is plain in every form (model.md 3.8), hence no kNorm.
    add(prefix + "norm", DenseKind::kVector, {c_.linear_value_dim});
    matrix(prefix + "out_proj", c_.hidden, c_.linear_v_width());
  }

  void full(const std::string& prefix) {
    matrix(prefix + "q_proj", 2 * c_.q_width(), c_.hidden);
    matrix(prefix + "k_proj", c_.kv_width(), c_.hidden);
    matrix(prefix + "v_proj", c_.kv_width(), c_.hidden);
    matrix(prefix + "o_proj", c_.hidden, c_.q_width());
    norm(prefix + "q_norm", c_.head_dim);
    norm(prefix + "k_norm", c_.head_dim);
    if (!c_.indexer) return;
    matrix(prefix + "indexer.index_qk_proj", c_.index_width(), c_.hidden);
    norm(prefix + "indexer.q_layernorm", c_.indexer->head_dim);
    norm(prefix + "indexer.k_layernorm", c_.indexer->head_dim);
  }

  void ple(const std::string& prefix) {
    matrix(prefix + "key_proj", c_.wide(), c_.ple->embed_dim);
    matrix(prefix + "value_proj", c_.hidden, c_.ple->embed_dim);
    norm(prefix + "norm_key", c_.wide());
    norm(prefix + "norm_query", c_.wide());
    norm(prefix + "norm_conv", c_.wide());
    add(prefix + "conv1d", DenseKind::kConv, {c_.wide(), c_.ple->conv_kernel});
  }

  void layer(const std::string& prefix, spec::LayerKind kind, bool with_ple) {
    if (with_ple) ple(prefix + "ple.");
    hyper(prefix + "attn_hyper_connection.", true);
    if (kind == spec::LayerKind::kLinear) {
      linear(prefix + "linear_attn.");
    } else {
      full(prefix + "self_attn.");
    }
    hyper(prefix + "mlp_hyper_connection.", true);
    matrix(prefix + "mlp.gate", c_.experts, c_.hidden);
    matrix(prefix + "mlp.shared_expert.gate_proj", c_.shared_inter, c_.hidden);
    matrix(prefix + "mlp.shared_expert.up_proj", c_.shared_inter, c_.hidden);
    matrix(prefix + "mlp.shared_expert.down_proj", c_.hidden, c_.shared_inter);
    matrix(prefix + "mlp.shared_expert_gate", 1, c_.hidden);
  }

  void mtp() {
    norm("mtp.pre_fc_norm_embedding", c_.hidden);
    norm("mtp.pre_fc_norm_hidden", c_.wide());
    matrix("mtp.fc_embedding", c_.hidden, c_.hidden);
    matrix("mtp.fc_hidden", c_.hidden, c_.hidden);
    layer("mtp.layers.0.", spec::LayerKind::kFull, false);
    hyper("mtp.hyper_connection_mixer.", false);
  }

  std::vector<DenseInfo> take() { return std::move(list_); }

 private:
  const spec::ModelConfig& c_;
  std::vector<DenseInfo> list_;
};

}  // namespace

std::int64_t elements(const DenseInfo& info) {
  std::int64_t count = 1;
  for (const std::int64_t side : info.shape) count *= side;
  return count;
}

std::vector<DenseInfo> dense_tensors(const spec::ModelConfig& config, bool with_mtp) {
  Table table(config);
  table.matrix("embed_tokens", config.vocab, config.hidden);
  for (std::int64_t i = 0; i < config.layer_count(); ++i) {
    table.layer(fmt::format("layers.{}.", i), config.layers[static_cast<std::size_t>(i)],
                config.is_ple_layer(i));
  }
  table.hyper("hyper_connection_mixer.", false);
  if (!config.tie_embeddings) table.matrix("lm_head", config.vocab, config.hidden);
  if (with_mtp) table.mtp();
  return table.take();
}

}  // namespace sluice::store

// The geometry of a qwen4_exp model, as its config.json gives it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace sluice::spec {

enum class LayerKind { kLinear, kFull };
enum class OutputGate { kSigmoid, kSilu };
enum class RopeType { kDefault, kLinear, kYarn };

/// rope_parameters (model.md 3.5, 1.5).
struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 1e7;
  std::int64_t rotary_dims = 64;  // int(head_dim * partial_rotary_factor), even; also used by the indexer
  std::vector<std::int64_t> mrope_section = {11, 11, 10};
  bool mrope_interleaved = true;
  double factor = 1;                        // linear, yarn
  std::int64_t original_max_positions = 0;  // yarn
  std::optional<double> attention_factor;   // yarn; absent: 0.1 ln(factor) + 1
  double beta_fast = 32, beta_slow = 1;     // yarn
  bool truncate = true;                     // yarn: round the correction range outwards to integers
};

/// QSA indexer; all fields are present or the model has none (model.md 3.7).
struct IndexerConfig {
  std::int64_t heads = 0;     // Ni
  std::int64_t head_dim = 0;  // Di
  std::int64_t budget = 0;    // tokens a query may select
  std::int64_t ratio = 0;     // tokens a block
  [[nodiscard]] std::int64_t block_budget() const { return budget / ratio; }
};

/// Hashed n-gram embedding of one layer (model.md 3.10).
struct PleConfig {
  std::vector<std::int64_t> layers;  // 0-based, ascending; the file's list is one-indexed
  std::int64_t embed_dim = 0;        // concatenated width
  std::int64_t conv_kernel = 4;
  std::int64_t ngram_size = 3;  // largest n-gram, and the dilation of the convolution
  std::int64_t heads_per_ngram = 8;
  std::int64_t vocab_base = 20000000;
  std::int64_t vocab_divisor = 128;
  std::int64_t parts = 512;
  std::int64_t seed = 1234;
  [[nodiscard]] std::int64_t heads() const { return (ngram_size - 1) * heads_per_ngram; }
  [[nodiscard]] std::int64_t head_dim() const { return embed_dim / heads(); }
  /// Past columns the convolution reads: (kernel - 1) * dilation.
  [[nodiscard]] std::int64_t window() const { return (conv_kernel - 1) * ngram_size; }
};

/// Group-wise affine quantisation of one module: value = code * scale + bias. Zero bits: the config says
/// that the module is not quantised (`"module": false`).
struct AffineFormat {
  int bits = 4;
  int group = 64;
  bool operator==(const AffineFormat&) const = default;
};

/// `quantization` of an MLX config: a default and overrides by module name, matched by prefix.
struct QuantizationConfig {
  AffineFormat standard;
  std::vector<std::pair<std::string, AffineFormat>> overrides;
  /// Format of `module` (a name as in the file, without .weight): the longest override that is a
  /// prefix of it at a dot, else the default.
  [[nodiscard]] AffineFormat format_of(std::string_view module) const;
};

/// Every field of the text config that inference uses. All sizes are validated: positive, bounded,
/// consistent.
struct ModelConfig {
  std::string model_type;    // qwen4_exp or qwen4_exp_text
  std::string architecture;  // first of `architectures`, may be empty

  std::int64_t vocab = 0;     // Vc
  std::int64_t hidden = 0;    // H
  std::int64_t heads = 0;     // Nq
  std::int64_t kv_heads = 0;  // Nk
  std::int64_t head_dim = 0;  // D
  std::int64_t max_positions = 0;
  float norm_eps = 1e-6F;
  std::vector<LayerKind> layers;  // trunk
  bool tie_embeddings = false;
  std::optional<std::int64_t> eos_token;  // the n-gram boundary; element 0 when the file has a list
  std::optional<std::int64_t> bos_token;

  RopeConfig rope;

  std::int64_t linear_key_heads = 0;    // Gk
  std::int64_t linear_value_heads = 0;  // Gv
  std::int64_t linear_key_dim = 0;      // dk
  std::int64_t linear_value_dim = 0;    // dv
  std::int64_t linear_conv_kernel = 4;  // Kc
  OutputGate output_gate = OutputGate::kSigmoid;

  std::int64_t experts = 0;            // E
  std::int64_t experts_per_token = 0;  // k
  std::int64_t expert_inter = 0;       // Fe
  std::int64_t shared_inter = 0;       // Fs
  bool norm_topk = true;

  std::int64_t streams = 4;     // C, residual streams
  std::int64_t hc_lowrank = 0;  // R

  std::optional<PleConfig> ple;
  std::optional<IndexerConfig> indexer;
  std::int64_t mtp_layers = 0;  // 0 or 1
  double mtp_rope_theta = 0;    // 0: as the trunk's

  std::optional<QuantizationConfig> quantization;
  std::string quant_method;  // quantization_config.quant_method: "fp8" for the released FP8 form, else empty
  bool has_vision = false;
  std::optional<std::int64_t> image_token, video_token;

  [[nodiscard]] std::int64_t wide() const { return streams * hidden; }  // W
  [[nodiscard]] std::int64_t layer_count() const { return static_cast<std::int64_t>(layers.size()); }
  [[nodiscard]] std::int64_t q_width() const { return heads * head_dim; }
  [[nodiscard]] std::int64_t kv_width() const { return kv_heads * head_dim; }
  [[nodiscard]] std::int64_t linear_qk_width() const { return linear_key_heads * linear_key_dim; }
  [[nodiscard]] std::int64_t linear_v_width() const { return linear_value_heads * linear_value_dim; }
  /// Rows of in_proj_qkv: q, k, then v.
  [[nodiscard]] std::int64_t linear_conv_width() const { return 2 * linear_qk_width() + linear_v_width(); }
  [[nodiscard]] std::int64_t index_width() const {
    return indexer ? (indexer->heads + 1) * indexer->head_dim : 0;
  }
  [[nodiscard]] bool is_ple_layer(std::int64_t layer) const;
  /// Layers that own experts: the trunk's, then the MTP layer.
  [[nodiscard]] std::int64_t record_layers() const { return layer_count() + mtp_layers; }
};

/// Reads a config.json, nested (`text_config`) or flat. Unknown fields are ignored. Errors name `what`
/// (the file), the field, the value found and the value needed.
Result<ModelConfig> parse_config(const Json& root, std::string_view what);

}  // namespace sluice::spec

#include "spec/geometries.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>

#include "spec/config.h"

namespace sluice::spec {
namespace {

/// Every fourth layer attends to everything.
bool is_full(std::int64_t layer) {
  return layer % 4 == 3;
}

Json layer_types(std::int64_t layers) {
  Json types = Json::array();
  for (std::int64_t i = 0; i < layers; ++i)
    types.push_back(is_full(i) ? "full_attention" : "linear_attention");
  return types;
}

/// The released model (model.md section 1).
constexpr std::string_view kFlashNext = R"({
  "architectures": ["Qwen4ExpForConditionalGeneration"], "model_type": "qwen4_exp",
  "image_token_id": 248056, "video_token_id": 248057, "language_model_only": false,
  "tie_word_embeddings": false, "vision_config": {"depth": 27, "model_type": "qwen4_exp"},
  "text_config": {
    "model_type": "qwen4_exp_text", "dtype": "bfloat16", "vocab_size": 248320, "hidden_size": 2560,
    "num_hidden_layers": 48, "num_attention_heads": 24, "num_key_value_heads": 2, "head_dim": 256,
    "attention_bias": false, "attention_dropout": 0.0, "hidden_act": "silu", "rms_norm_eps": 1e-06,
    "max_position_embeddings": 262144, "tie_word_embeddings": false, "bos_token_id": 248044,
    "eos_token_id": 248044, "pad_token_id": null, "partial_rotary_factor": 0.25,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25,
                        "mrope_section": [11, 11, 10], "mrope_interleaved": true},
    "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "mamba_ssm_dtype": "float32",
    "output_gate_type": "sigmoid", "num_experts": 512, "num_experts_per_tok": 10,
    "moe_intermediate_size": 640, "shared_expert_intermediate_size": 640, "hc_count": 4, "hc_lowrank": 320,
    "ple_layer_ids": [2], "ple_embed_dim": 2560, "ple_conv_kernel_size": 4, "ngram_size": 3,
    "heads_per_ngram": 8, "ngram_vocab_size_base": 20000000, "make_ngram_vocab_size_divisible_by": 128,
    "split_ngram_parts": 128, "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 128,
    "indexer_budget": 2048, "indexer_compress_ratio": 4, "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": false,
    "mtp": {"hybrid": true, "layer_types": ["full_attention"], "mtp_use_hidden_state_from_layer": null,
            "num_hidden_layers": 1, "rope_theta": 10000000}}})";

/// The pocket dictionary in models/demo.
constexpr std::string_view kDemo = R"({
  "architectures": ["Qwen4ExpForConditionalGeneration"], "model_type": "qwen4_exp",
  "language_model_only": true, "tie_word_embeddings": false,
  "text_config": {
    "model_type": "qwen4_exp_text", "dtype": "bfloat16", "vocab_size": 4096, "hidden_size": 256,
    "num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128,
    "attention_bias": false, "attention_dropout": 0.0, "hidden_act": "silu", "rms_norm_eps": 1e-06,
    "initializer_range": 0.02, "max_position_embeddings": 8192, "tie_word_embeddings": false,
    "bos_token_id": null, "eos_token_id": 4064, "pad_token_id": null,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000.0, "partial_rotary_factor": 0.25,
                        "mrope_section": [6, 5, 5], "mrope_interleaved": true},
    "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 64,
    "linear_value_head_dim": 64, "linear_conv_kernel_dim": 4, "mamba_ssm_dtype": "float32",
    "output_gate_type": "sigmoid", "num_experts": 32, "num_experts_per_tok": 4,
    "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64, "output_router_logits": false,
    "router_aux_loss_coef": 0.001, "hc_count": 4, "hc_lowrank": 64,
    "ple_layer_ids": [2], "ple_embed_dim": 256, "ple_conv_kernel_size": 4, "ngram_size": 3,
    "heads_per_ngram": 4, "ngram_vocab_size_base": 16384, "make_ngram_vocab_size_divisible_by": 128,
    "split_ngram_parts": 4, "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 64,
    "indexer_budget": 128, "indexer_compress_ratio": 4, "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": false}})";

/// The smallest with every part: three linear layers and a full one, heads of 1009 rows or a little more.
constexpr std::string_view kTiny = R"({
  "architectures": ["Qwen4ExpForConditionalGeneration"], "model_type": "qwen4_exp",
  "tie_word_embeddings": false,
  "text_config": {
    "model_type": "qwen4_exp_text", "vocab_size": 512, "hidden_size": 64, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 4096,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25,
                        "mrope_section": [2, 1, 1], "mrope_interleaved": true},
    "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32,
    "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4, "output_gate_type": "sigmoid",
    "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64, "hc_count": 4, "hc_lowrank": 64, "eos_token_id": 2,
    "ple_layer_ids": [2], "ple_embed_dim": 128, "ple_conv_kernel_size": 4, "ngram_size": 3,
    "heads_per_ngram": 2, "ngram_vocab_size_base": 1009, "make_ngram_vocab_size_divisible_by": 128,
    "split_ngram_parts": 4, "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 32,
    "indexer_budget": 16, "indexer_compress_ratio": 4, "mtp_num_hidden_layers": 1}})";

struct Named {
  std::string_view name;
  std::string_view text;
};

constexpr std::array kGeometries = {Named{"flash-next", kFlashNext}, Named{"qwen3.8-flash-next", kFlashNext},
                                    Named{"demo", kDemo}, Named{"tiny", kTiny}};
constexpr std::array<std::string_view, 3> kNames = {"flash-next", "demo", "tiny"};

/// One-indexed layers that keep their n-gram embedding.
Json ple_layers(const Json& ids, std::int64_t layers) {
  Json kept = Json::array();
  for (const Json& id : ids) {
    if (!id.is_number_integer()) return ids;  // parse_config says what is wrong
    const auto layer = id.get<std::int64_t>() - 1;
    if (layer < layers && !is_full(layer)) kept.push_back(id);
  }
  if (!kept.empty() || ids.empty()) return kept;
  return Json::array({is_full(layers - 1) ? layers - 1 : layers});
}

}  // namespace

std::optional<Json> named_geometry(std::string_view name) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const auto* found =
      std::find_if(kGeometries.begin(), kGeometries.end(), [&](const Named& g) { return g.name == lower; });
  if (found == kGeometries.end()) return std::nullopt;
  Json config = Json::parse(found->text);
  Json& text = config["text_config"];
  text["layer_types"] = layer_types(text["num_hidden_layers"].get<std::int64_t>());
  return config;
}

std::span<const std::string_view> geometry_names() {
  return kNames;
}

Result<Json> override_geometry(Json config, const GeometryOverrides& overrides) {
  SLUICE_ASSIGN(const ModelConfig before, parse_config(config, "geometry"));
  const bool nested = config.contains("text_config") && config["text_config"].is_object();
  Json& text = nested ? config["text_config"] : config;
  if (overrides.layers) {
    if (*overrides.layers < 1 || *overrides.layers > 1024) {
      return make_error(ErrorCode::kInvalidArgument, "layers {}: needed 1 to 1024", *overrides.layers);
    }
    text["num_hidden_layers"] = *overrides.layers;
    text["layer_types"] = layer_types(*overrides.layers);
    if (text.contains("ple_layer_ids") && text["ple_layer_ids"].is_array()) {
      text["ple_layer_ids"] = ple_layers(text["ple_layer_ids"], *overrides.layers);
    }
  }
  if (overrides.experts) {
    if (*overrides.experts < before.experts_per_token) {
      return make_error(ErrorCode::kInvalidArgument, "experts {}: needed at least {}, as each token takes {}",
                        *overrides.experts, before.experts_per_token, before.experts_per_token);
    }
    text["num_experts"] = *overrides.experts;
  }
  if (overrides.ngram_base) {
    if (!before.ple) {
      return make_error(ErrorCode::kInvalidArgument,
                        "n-gram base {}: needed a model with an n-gram embedding", *overrides.ngram_base);
    }
    text["ngram_vocab_size_base"] = *overrides.ngram_base;
  }
  SLUICE_TRY(parse_config(config, "geometry with the options given"));
  return config;
}

}  // namespace sluice::spec

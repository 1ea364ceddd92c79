#include "spec/config.h"

#include <algorithm>
#include <limits>

#include "spec/config_fields.h"
#include "spec/config_parts.h"

namespace sluice::spec {
namespace {

// Bounds far above any model of the family, and low enough that products of sizes stay inside int64:
// the largest, layers x experts x 3 x hidden x inter x 4 bytes, is below 2^62.
constexpr std::int64_t kMaxVocab = 1 << 24;
constexpr std::int64_t kMaxWidth = 1 << 16;  // hidden, inner and low-rank widths
constexpr std::int64_t kMaxLayers = 1 << 10;
constexpr std::int64_t kMaxHeads = 1 << 10;
constexpr std::int64_t kMaxHeadDim = 1 << 12;
constexpr std::int64_t kMaxExperts = 1 << 14;
constexpr std::int64_t kMaxStreams = 1 << 6;
constexpr std::int64_t kMaxKernel = 1 << 6;
constexpr std::int64_t kMaxPositions = 1 << 30;

void read_identity(const FieldReader& root, const FieldReader& text, ModelConfig& c) {
  c.model_type = root.text("model_type", text.text("model_type", ""));
  if (c.model_type != "qwen4_exp" && c.model_type != "qwen4_exp_text") {
    root.fail("model_type", c.model_type.empty() ? "nothing" : "\"" + c.model_type.substr(0, 60) + "\"",
              "\"qwen4_exp\" or \"qwen4_exp_text\"", ErrorCode::kUnsupported);
  }
  if (const Json* list = root.find("architectures");
      list != nullptr && list->is_array() && !list->empty() && list->front().is_string()) {
    c.architecture = list->front().get<std::string>();
  }
}

void read_layers(const FieldReader& text, ModelConfig& c) {
  const Json* types = text.find("layer_types");
  const std::int64_t count = text.integer("num_hidden_layers", 40, 1, kMaxLayers);
  if (types == nullptr) {
    const std::int64_t interval = text.integer("full_attention_interval", 4, 1, kMaxLayers);
    for (std::int64_t i = 0; i < count; ++i) {
      c.layers.push_back((i + 1) % interval == 0 ? LayerKind::kFull : LayerKind::kLinear);
    }
    return;
  }
  if (!types->is_array() || types->size() != static_cast<std::size_t>(count)) {
    text.fail("layer_types", types->is_array() ? fmt::format("a list of {}", types->size()) : "no list",
              fmt::format("a list of {} (num_hidden_layers)", count));
    return;
  }
  for (const Json& type : *types) {
    if (!type.is_string()) return text.fail("layer_types", "a list of strings");
    // Several spellings of the full type are in use (model.md 1.2); there is one of the linear type.
    c.layers.push_back(type.get_ref<const std::string&>() == "linear_attention" ? LayerKind::kLinear
                                                                                : LayerKind::kFull);
  }
}

/// A token id; of a list the first element, as the reference library takes it (model.md 7.5).
std::optional<std::int64_t> read_token(const FieldReader& fields, std::string_view key, std::int64_t vocab) {
  const Json* value = fields.find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_array()) return fields.integer(key, 0, vocab - 1);
  const auto list = fields.integers(key, 0, vocab - 1, 1024);
  return list && !list->empty() ? std::optional(list->front()) : std::nullopt;
}

void read_trunk(const FieldReader& root, const FieldReader& text, ModelConfig& c) {
  c.vocab = text.integer("vocab_size", 248320, 1, kMaxVocab);
  c.hidden = text.integer("hidden_size", 2048, 1, kMaxWidth);
  c.max_positions = text.integer("max_position_embeddings", 32768, 1, kMaxPositions);
  c.norm_eps = static_cast<float>(text.number("rms_norm_eps", 1e-6, 1e-30, 1.0));
  read_layers(text, c);
  c.tie_embeddings = text.boolean("tie_word_embeddings", root.boolean("tie_word_embeddings", false));
  c.eos_token = read_token(text.has("eos_token_id") ? text : root, "eos_token_id", c.vocab);
  c.bos_token = read_token(text, "bos_token_id", c.vocab);
  if (text.boolean("attention_bias", false)) {
    text.fail("attention_bias", "false", ErrorCode::kUnsupported);
  }
  if (text.text("hidden_act", "silu") != "silu") {
    text.fail("hidden_act", "\"silu\"", ErrorCode::kUnsupported);
  }
  c.streams = text.integer("hc_count", 4, 2, kMaxStreams);
  c.hc_lowrank = text.integer("hc_lowrank", 320, 1, kMaxWidth);
}

void read_attention(const FieldReader& text, ModelConfig& c) {
  c.heads = text.integer("num_attention_heads", 16, 1, kMaxHeads);
  c.kv_heads = text.integer("num_key_value_heads", 2, 1, kMaxHeads);
  c.head_dim = text.integer("head_dim", 256, 1, kMaxHeadDim);
  if (c.heads % c.kv_heads != 0) {
    text.fail("num_attention_heads", std::to_string(c.heads),
              fmt::format("a multiple of num_key_value_heads ({})", c.kv_heads));
  }
}

void read_linear(const FieldReader& text, ModelConfig& c) {
  c.linear_key_heads = text.integer("linear_num_key_heads", 16, 1, kMaxHeads);
  c.linear_value_heads = text.integer("linear_num_value_heads", 32, 1, kMaxHeads);
  c.linear_key_dim = text.integer("linear_key_head_dim", 128, 1, kMaxHeadDim);
  c.linear_value_dim = text.integer("linear_value_head_dim", 128, 1, kMaxHeadDim);
  c.linear_conv_kernel = text.integer("linear_conv_kernel_dim", 4, 1, kMaxKernel);
  if (c.linear_value_heads % c.linear_key_heads != 0) {
    text.fail("linear_num_value_heads", std::to_string(c.linear_value_heads),
              fmt::format("a multiple of linear_num_key_heads ({})", c.linear_key_heads));
  }
  // Absent means hidden_act, which is silu for every model accepted here.
  const std::string gate = text.text("output_gate_type", "silu");
  if (gate != "sigmoid" && gate != "silu") {
    text.fail("output_gate_type", "\"sigmoid\" or \"silu\"", ErrorCode::kUnsupported);
  }
  c.output_gate = gate == "sigmoid" ? OutputGate::kSigmoid : OutputGate::kSilu;
}

void read_experts(const FieldReader& text, ModelConfig& c) {
  c.experts = text.integer("num_experts", 512, 1, kMaxExperts);
  c.experts_per_token = text.integer("num_experts_per_tok", 10, 1, kMaxExperts);
  c.expert_inter = text.integer("moe_intermediate_size", 512, 1, kMaxWidth);
  c.shared_inter = text.integer("shared_expert_intermediate_size", 512, 1, kMaxWidth);
  c.norm_topk = text.boolean("norm_topk_prob", true);
  if (c.experts_per_token > c.experts) {
    text.fail("num_experts_per_tok", std::to_string(c.experts_per_token),
              fmt::format("at most num_experts ({})", c.experts));
  }
}

void read_mtp(const FieldReader& text, ModelConfig& c) {
  const FieldReader mtp = text.object("mtp");
  c.mtp_layers = text.integer("mtp_num_hidden_layers", mtp.integer("num_hidden_layers", 0, 0, 1), 0, 1);
  if (c.mtp_layers == 0) return;
  c.mtp_rope_theta = mtp.number("rope_theta", 0, 1e-3, 1e15);
  if (text.boolean("mtp_use_dedicated_embeddings", false)) {
    text.fail("mtp_use_dedicated_embeddings", "false", ErrorCode::kUnsupported);
  }
  if (mtp.has("mtp_use_hidden_state_from_layer")) {
    mtp.fail("mtp_use_hidden_state_from_layer", "null (the trunk's output)", ErrorCode::kUnsupported);
  }
  if (const Json* types = mtp.find("layer_types"); types != nullptr && types->is_array()) {
    for (const Json& type : *types) {
      if (type == "linear_attention") {
        mtp.fail("layer_types", "\"full_attention\"", ErrorCode::kUnsupported);
      }
    }
  }
}

}  // namespace

bool ModelConfig::is_ple_layer(std::int64_t layer) const {
  return ple && std::find(ple->layers.begin(), ple->layers.end(), layer) != ple->layers.end();
}

Result<ModelConfig> parse_config(const Json& root, std::string_view what) {
  if (!root.is_object()) {
    return make_error(ErrorCode::kInvalidArgument, "{}: a JSON object needed", what);
  }
  FieldErrors errors(what);
  const FieldReader top(root, "", errors);
  const bool nested = top.has("text_config");
  const FieldReader text = nested ? top.object("text_config") : top;

  ModelConfig config;
  read_identity(top, text, config);
  read_trunk(top, text, config);
  read_attention(text, config);
  read_rope(text, config);
  read_linear(text, config);
  read_experts(text, config);
  read_indexer(text, config);
  read_ple(text, config);
  read_mtp(text, config);
  read_quantization(top, config);
  if (const Json* vision = top.find("vision_config")) config.has_vision = vision->is_object();
  config.image_token = read_token(top, "image_token_id", config.vocab);
  config.video_token = read_token(top, "video_token_id", config.vocab);

  if (errors.first()) return *errors.first();
  return config;
}

}  // namespace sluice::spec

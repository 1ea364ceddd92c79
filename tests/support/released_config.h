// The released model's config (model.md section 1), for tests.
#pragma once

#include "base/json.h"

namespace sluice::test {

inline Json released_config() {
  Json config = Json::parse(R"({
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
              "num_hidden_layers": 1, "rope_theta": 10000000}}})");
  Json& types = config["text_config"]["layer_types"] = Json::array();
  for (int i = 0; i < 48; ++i) types.push_back(i % 4 == 3 ? "full_attention" : "linear_attention");
  return config;
}

}  // namespace sluice::test

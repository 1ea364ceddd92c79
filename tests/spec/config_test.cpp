// Configs that are read, and what they mean.
#include "spec/config.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/random_model.h"
#include "support/released_config.h"

namespace sluice::spec {
namespace {

ModelConfig parse(const Json& json) {
  auto config = parse_config(json, "config.json");
  if (!config) {
    ADD_FAILURE() << config.error().message;
    return {};
  }
  return *config;
}

/// The smallest config: everything else by default.
Json minimal() {
  return {{"model_type", "qwen4_exp_text"}};
}

TEST(Config, ReleasedModel) {
  const ModelConfig c = parse(test::released_config());
  EXPECT_EQ(c.model_type, "qwen4_exp");
  EXPECT_EQ(c.architecture, "Qwen4ExpForConditionalGeneration");
  EXPECT_EQ(c.vocab, 248320);
  EXPECT_EQ(c.wide(), 10240);
  EXPECT_EQ(c.layer_count(), 48);
  EXPECT_EQ(c.record_layers(), 49);
  EXPECT_EQ(c.layers[2], LayerKind::kLinear);
  EXPECT_EQ(c.layers[3], LayerKind::kFull);
  EXPECT_EQ(c.q_width(), 6144);
  EXPECT_EQ(c.kv_width(), 512);
  EXPECT_EQ(c.linear_conv_width(), 10240);
  EXPECT_EQ(c.linear_v_width(), 6144);
  EXPECT_EQ(c.index_width(), 640);
  EXPECT_EQ(c.max_positions, 262144);
  EXPECT_FLOAT_EQ(c.norm_eps, 1e-6F);
  EXPECT_EQ(c.eos_token, 248044);
  EXPECT_EQ(c.bos_token, 248044);
  EXPECT_EQ(c.rope.type, RopeType::kDefault);
  EXPECT_EQ(c.rope.rotary_dims, 64);
  EXPECT_EQ(c.rope.theta, 1e7);
  EXPECT_EQ(c.rope.mrope_section, (std::vector<std::int64_t>{11, 11, 10}));
  EXPECT_EQ(c.output_gate, OutputGate::kSigmoid);
  EXPECT_TRUE(c.norm_topk);
  EXPECT_EQ(c.experts_per_token, 10);
  ASSERT_TRUE(c.ple);
  EXPECT_EQ(c.ple->layers, (std::vector<std::int64_t>{1}));
  EXPECT_TRUE(c.is_ple_layer(1));
  EXPECT_FALSE(c.is_ple_layer(2));
  EXPECT_EQ(c.ple->heads(), 16);
  EXPECT_EQ(c.ple->head_dim(), 160);
  EXPECT_EQ(c.ple->window(), 9);
  EXPECT_EQ(c.ple->seed, 1234);
  EXPECT_EQ(c.ple->parts, 128);
  ASSERT_TRUE(c.indexer);
  EXPECT_EQ(c.indexer->block_budget(), 512);
  EXPECT_EQ(c.mtp_layers, 1);
  EXPECT_EQ(c.mtp_rope_theta, 1e7);
  EXPECT_TRUE(c.has_vision);
  EXPECT_EQ(c.image_token, 248056);
  EXPECT_EQ(c.video_token, 248057);
  EXPECT_FALSE(c.quantization);
}

TEST(Config, DefaultsAreTheLibrarys) {
  const ModelConfig c = parse(minimal());
  EXPECT_EQ(c.vocab, 248320);
  EXPECT_EQ(c.hidden, 2048);
  EXPECT_EQ(c.layer_count(), 40);
  EXPECT_EQ(c.layers[3], LayerKind::kFull);
  EXPECT_EQ(c.layers[4], LayerKind::kLinear);
  EXPECT_EQ(c.heads, 16);
  EXPECT_EQ(c.kv_heads, 2);
  EXPECT_EQ(c.head_dim, 256);
  EXPECT_EQ(c.max_positions, 32768);
  EXPECT_FALSE(c.tie_embeddings);
  EXPECT_FALSE(c.eos_token);
  EXPECT_FALSE(c.bos_token);
  EXPECT_EQ(c.rope.rotary_dims, 256);
  EXPECT_EQ(c.linear_key_heads, 16);
  EXPECT_EQ(c.linear_value_heads, 32);
  EXPECT_EQ(c.linear_key_dim, 128);
  EXPECT_EQ(c.linear_value_dim, 128);
  EXPECT_EQ(c.linear_conv_kernel, 4);
  EXPECT_EQ(c.output_gate, OutputGate::kSilu);  // null means hidden_act
  EXPECT_EQ(c.experts, 512);
  EXPECT_EQ(c.experts_per_token, 10);
  EXPECT_EQ(c.expert_inter, 512);
  EXPECT_EQ(c.shared_inter, 512);
  EXPECT_TRUE(c.norm_topk);
  EXPECT_EQ(c.streams, 4);
  EXPECT_EQ(c.hc_lowrank, 320);
  EXPECT_FALSE(c.ple);
  EXPECT_FALSE(c.indexer);
  EXPECT_EQ(c.mtp_layers, 0);
  EXPECT_FALSE(c.has_vision);
}

TEST(Config, PleDefaults) {
  Json json = minimal();
  json["ple_layer_ids"] = {2, 1};
  json["eos_token_id"] = 7;
  const ModelConfig c = parse(json);
  ASSERT_TRUE(c.ple);
  EXPECT_EQ(c.ple->layers, (std::vector<std::int64_t>{0, 1}));
  EXPECT_EQ(c.ple->embed_dim, 2048);
  EXPECT_EQ(c.ple->conv_kernel, 4);
  EXPECT_EQ(c.ple->ngram_size, 3);
  EXPECT_EQ(c.ple->heads_per_ngram, 8);
  EXPECT_EQ(c.ple->vocab_base, 20000000);
  EXPECT_EQ(c.ple->vocab_divisor, 128);
  EXPECT_EQ(c.ple->parts, 512);
  EXPECT_EQ(c.ple->seed, 1234);
}

TEST(Config, FlatAndNestedAgree) {
  const Json nested = test::tiny_config();
  const ModelConfig a = parse(nested), b = parse(nested["text_config"]);
  EXPECT_EQ(a.hidden, b.hidden);
  EXPECT_EQ(a.layers, b.layers);
  EXPECT_EQ(a.ple->layers, b.ple->layers);
  EXPECT_EQ(a.rope.mrope_section, b.rope.mrope_section);
  EXPECT_EQ(b.model_type, "qwen4_exp_text");
}

TEST(Config, UnknownFieldsAreIgnored) {
  Json json = test::tiny_config();
  json["text_config"]["a_field_of_next_year"] = {{"deep", {1, 2, 3}}};
  json["another"] = nullptr;
  EXPECT_EQ(parse(json).hidden, 64);
}

TEST(Config, EveryOtherSpellingOfLayerTypeIsFull) {
  Json json = test::tiny_config();
  Json& text = json["text_config"];
  text["num_hidden_layers"] = 5;
  text["layer_types"] = {"linear_attention", "linear_attention", "deepseek_sparse_attention",
                         "qwen_sparse_attention", "hybrid_indexed"};
  const ModelConfig c = parse(json);
  EXPECT_EQ(c.layers, (std::vector<LayerKind>{LayerKind::kLinear, LayerKind::kLinear, LayerKind::kFull,
                                              LayerKind::kFull, LayerKind::kFull}));
}

TEST(Config, IntervalRulesWithoutLayerTypes) {
  Json json = test::tiny_config();
  Json& text = json["text_config"];
  text.erase("layer_types");
  text["num_hidden_layers"] = 7;
  text["full_attention_interval"] = 3;
  const ModelConfig c = parse(json);
  ASSERT_EQ(c.layer_count(), 7);
  for (std::size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(c.layers[i], i % 3 == 2 ? LayerKind::kFull : LayerKind::kLinear) << i;
  }
}

TEST(Config, EosListGivesItsFirst) {
  Json json = test::tiny_config();
  json["text_config"]["eos_token_id"] = {5, 9};
  EXPECT_EQ(parse(json).eos_token, 5);
}

TEST(Config, EosAtTopLevelServes) {
  Json json = test::tiny_config();
  json["text_config"].erase("eos_token_id");
  json["eos_token_id"] = 11;
  EXPECT_EQ(parse(json).eos_token, 11);
}

TEST(Config, TiedEmbeddingsInEitherPlace) {
  Json json = test::tiny_config();
  json["text_config"]["tie_word_embeddings"] = true;
  EXPECT_TRUE(parse(json).tie_embeddings);
  json = test::tiny_config();
  json["tie_word_embeddings"] = true;
  EXPECT_TRUE(parse(json).tie_embeddings);
}

TEST(Config, YarnFields) {
  Json json = test::released_config();
  Json& rope = json["text_config"]["rope_parameters"];
  rope["rope_type"] = "yarn";
  rope["factor"] = 4;
  rope["original_max_position_embeddings"] = 262144;
  const ModelConfig plain = parse(json);
  EXPECT_EQ(plain.rope.type, RopeType::kYarn);
  EXPECT_EQ(plain.rope.factor, 4);
  EXPECT_EQ(plain.rope.original_max_positions, 262144);
  EXPECT_FALSE(plain.rope.attention_factor);
  EXPECT_EQ(plain.rope.beta_fast, 32);
  EXPECT_EQ(plain.rope.beta_slow, 1);
  EXPECT_TRUE(plain.rope.truncate);

  rope["attention_factor"] = 1.5;
  rope["beta_fast"] = 16;
  rope["beta_slow"] = 2;
  rope["truncate"] = false;
  const ModelConfig full = parse(json);
  EXPECT_EQ(full.rope.attention_factor, 1.5);
  EXPECT_EQ(full.rope.beta_fast, 16);
  EXPECT_EQ(full.rope.beta_slow, 2);
  EXPECT_FALSE(full.rope.truncate);

  rope.erase("attention_factor");
  rope["mscale"] = 1.0;
  rope["mscale_all_dim"] = 0.5;
  const double needed = (0.1 * std::log(4.0) + 1) / (0.05 * std::log(4.0) + 1);
  ASSERT_TRUE(parse(json).rope.attention_factor);
  EXPECT_DOUBLE_EQ(*parse(json).rope.attention_factor, needed);

  rope.erase("factor");
  json["text_config"]["max_position_embeddings"] = 1048576;
  EXPECT_EQ(parse(json).rope.factor, 4);
}

TEST(Config, OlderRopeScaling) {
  Json json = test::tiny_config();
  Json& text = json["text_config"];
  text.erase("rope_parameters");
  text["rope_theta"] = 5000;
  text["partial_rotary_factor"] = 0.5;
  text["rope_scaling"] = {{"type", "linear"}, {"factor", 2.5}};
  const ModelConfig c = parse(json);
  EXPECT_EQ(c.rope.type, RopeType::kLinear);
  EXPECT_EQ(c.rope.factor, 2.5);
  EXPECT_EQ(c.rope.theta, 5000);
  EXPECT_EQ(c.rope.rotary_dims, 16);
  EXPECT_EQ(c.rope.mrope_section, (std::vector<std::int64_t>{3, 3, 2}));  // as [11, 11, 10] of 32
  text["rope_scaling"] = nullptr;
  EXPECT_EQ(parse(json).rope.type, RopeType::kDefault);
}

TEST(Config, RopeByLayerType) {
  Json json = test::tiny_config();
  Json& rope = json["text_config"]["rope_parameters"];
  Json inner = rope;
  inner["rope_theta"] = 777;
  rope = {{"full_attention", inner}};
  const ModelConfig c = parse(json);
  EXPECT_EQ(c.rope.theta, 777);
  EXPECT_EQ(c.rope.rotary_dims, 8);
}

TEST(Config, MtpByItsObjectAlone) {
  Json json = test::tiny_config();
  json["text_config"].erase("mtp_num_hidden_layers");
  EXPECT_EQ(parse(json).mtp_layers, 0);
  json["text_config"]["mtp"] = {{"num_hidden_layers", 1}, {"rope_theta", 1e6}};
  EXPECT_EQ(parse(json).mtp_layers, 1);
  EXPECT_EQ(parse(json).mtp_rope_theta, 1e6);
}

TEST(Config, QuantizationOverridesMatchAtDots) {
  Json json = test::tiny_config();
  json["quantization"] = {{"group_size", 64},
                          {"bits", 4},
                          {"mode", "affine"},
                          {"a.table", {{"group_size", 32}, {"bits", 4}}},
                          {"a.table.deep", {{"bits", 8}}},
                          {"b", false},
                          {"c", true}};
  const ModelConfig c = parse(json);
  ASSERT_TRUE(c.quantization);
  const auto format = [&](std::string_view name) { return c.quantization->format_of(name); };
  EXPECT_EQ(format("x"), (AffineFormat{4, 64}));
  EXPECT_EQ(format("a.table"), (AffineFormat{4, 32}));
  EXPECT_EQ(format("a.table.shards.7"), (AffineFormat{4, 32}));
  EXPECT_EQ(format("a.tables"), (AffineFormat{4, 64}));
  EXPECT_EQ(format("a.table.deep.er"), (AffineFormat{8, 64}));
  EXPECT_EQ(format("b").bits, 0);
  EXPECT_EQ(format("c"), (AffineFormat{4, 64}));
}

TEST(Config, QuantizationConfigInBothMeanings) {
  Json json = test::tiny_config();
  json["quantization_config"] = {{"group_size", 32}, {"bits", 8}};
  ASSERT_TRUE(parse(json).quantization);
  EXPECT_EQ(parse(json).quantization->standard, (AffineFormat{8, 32}));
  json["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  EXPECT_FALSE(parse(json).quantization);
  EXPECT_EQ(parse(json).quant_method, "fp8");
}

}  // namespace
}  // namespace sluice::spec

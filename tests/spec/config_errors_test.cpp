// Configs that are refused, each with an error that names the field.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "spec/config.h"
#include "support/random_model.h"

namespace sluice::spec {
namespace {

using testing::HasSubstr;

struct BadField {
  std::string field;  // in text_config
  Json value;
  std::string needed;  // a part of the message beside the field's name
};

void PrintTo(const BadField& bad, std::ostream* out) {
  *out << bad.field << " = " << bad.value.dump();
}

class ConfigErrors : public testing::TestWithParam<BadField> {};

TEST_P(ConfigErrors, NamesTheField) {
  Json json = test::tiny_config();
  json["text_config"][GetParam().field] = GetParam().value;
  const auto config = parse_config(json, "my/config.json");
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(config.error().message, HasSubstr("my/config.json: "));
  EXPECT_THAT(config.error().message, HasSubstr(GetParam().field));
  EXPECT_THAT(config.error().message, HasSubstr(GetParam().needed));
  EXPECT_LT(config.error().message.size(), 400U);
}

TEST(ConfigSizes, EverySizeIsAPositiveBoundedInteger) {
  for (const char* field : {"vocab_size",
                            "hidden_size",
                            "num_hidden_layers",
                            "num_attention_heads",
                            "num_key_value_heads",
                            "head_dim",
                            "max_position_embeddings",
                            "linear_num_key_heads",
                            "linear_num_value_heads",
                            "linear_key_head_dim",
                            "linear_value_head_dim",
                            "linear_conv_kernel_dim",
                            "num_experts",
                            "num_experts_per_tok",
                            "moe_intermediate_size",
                            "shared_expert_intermediate_size",
                            "hc_count",
                            "hc_lowrank",
                            "ple_embed_dim",
                            "ple_conv_kernel_size",
                            "ngram_size",
                            "heads_per_ngram",
                            "ngram_vocab_size_base",
                            "make_ngram_vocab_size_divisible_by",
                            "split_ngram_parts",
                            "indexer_n_heads",
                            "indexer_kv_heads",
                            "indexer_head_dim",
                            "indexer_budget",
                            "indexer_compress_ratio"}) {
    for (const char* value : {"0", "-1", "2.5", "4294967296000", "9223372036854775807",
                              "18446744073709551615", "1e300", "\"4\"", "[4]", "{}", "true"}) {
      Json json = test::tiny_config();
      json["text_config"][field] = Json::parse(value);
      const auto config = parse_config(json, "config.json");
      ASSERT_FALSE(config.ok()) << field << " = " << value;
      EXPECT_EQ(config.error().code, ErrorCode::kInvalidArgument);
      EXPECT_THAT(config.error().message,
                  HasSubstr(std::string("config.json: ") + "text_config." + field + ": "));
      EXPECT_THAT(config.error().message, HasSubstr("an integer from "));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Others, ConfigErrors,
    testing::Values(
        BadField{"num_attention_heads", 3, "a multiple of num_key_value_heads (2)"},
        BadField{"linear_num_value_heads", 3, "a multiple of linear_num_key_heads (2)"},
        BadField{"hc_count", 1, "from 2 to"}, BadField{"num_experts_per_tok", 17, "at most num_experts (16)"},
        BadField{"layer_types", {"linear_attention"}, "a list of 4"},
        BadField{"layer_types", "linear_attention", "a list of 4"},
        BadField{"layer_types", {1, 2, 3, 4}, "strings"}, BadField{"num_hidden_layers", 5, "5"},
        BadField{"indexer_kv_heads", 2, "from 1 to 1"},
        BadField{"indexer_kv_heads", nullptr, "five indexer keys"},
        BadField{"indexer_budget", nullptr, "five indexer keys"},
        BadField{"indexer_budget", 18, "a multiple of indexer_compress_ratio (4)"},
        BadField{"indexer_head_dim", 6, "8 rotary dims"}, BadField{"ple_embed_dim", 126, "4 n-gram heads"},
        BadField{"eos_token_id", nullptr, "n-gram"}, BadField{"eos_token_id", Json::array(), "n-gram"},
        BadField{"eos_token_id", 512, "from 0 to 511"}, BadField{"eos_token_id", -1, "from 0 to 511"},
        BadField{"eos_token_id", {600, 1}, "from 0 to 511"}, BadField{"ple_layer_ids", {0}, "from 1 to 4"},
        BadField{"ple_layer_ids", {5}, "from 1 to 4"}, BadField{"ple_layer_ids", {4}, "linear-attention"},
        BadField{"ple_layer_ids", {2, 2}, "once"}, BadField{"ple_layer_ids", 2, "a list"},
        BadField{"attention_bias", true, "false"}, BadField{"hidden_act", "gelu", "silu"},
        BadField{"output_gate_type", "tanh", "sigmoid"}, BadField{"rms_norm_eps", 0, "a number from"},
        BadField{"rms_norm_eps", "1e-6", "a number from"},
        BadField{"tie_word_embeddings", 1, "true or false"},
        BadField{"mtp_num_hidden_layers", 2, "from 0 to 1"},
        BadField{"mtp_num_hidden_layers", -1, "from 0 to 1"},
        BadField{"mtp_use_dedicated_embeddings", true, "false"}, BadField{"mtp", 3, "an object"},
        BadField{"mtp", {{"rope_theta", -1}}, "rope_theta"},
        BadField{"mtp", {{"mtp_use_hidden_state_from_layer", 3}}, "mtp_use_hidden_state_from_layer"},
        BadField{"mtp", {{"layer_types", {"linear_attention"}}}, "full_attention"},
        BadField{"rope_parameters", {{"rope_type", "dynamic"}}, "\"yarn\""},
        BadField{"rope_parameters", {{"rope_type", "llama3"}}, "rope_type"},
        BadField{"rope_parameters", {{"partial_rotary_factor", 0}}, "partial_rotary_factor"},
        BadField{"rope_parameters", {{"partial_rotary_factor", 0.1}}, "an even number"},
        BadField{"rope_parameters", {{"partial_rotary_factor", 1.5}}, "from 0 to 1"},
        BadField{"rope_parameters", {{"rope_theta", 0}}, "rope_theta"},
        BadField{"rope_parameters", {{"rope_type", "yarn"}}, "factor"},
        BadField{"rope_parameters", {{"rope_type", "yarn"}, {"factor", 0.5}}, "factor"},
        BadField{"rope_parameters", {{"partial_rotary_factor", 0.25}, {"mrope_section", {2, 2, 2}}}, "sum 4"},
        BadField{"rope_parameters", {{"partial_rotary_factor", 0.25}, {"mrope_section", {2, 2}}}, "sum 4"},
        BadField{"rope_parameters",
                 {{"partial_rotary_factor", 0.25}, {"mrope_section", {-1, 3, 2}}},
                 "mrope_section"},
        BadField{"rope_parameters", "yarn", "an object"}));

void expect_error(const Json& json, ErrorCode code, std::string_view part) {
  const auto config = parse_config(json, "config.json");
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.error().code, code);
  EXPECT_THAT(config.error().message, HasSubstr(std::string(part)));
}

TEST(ConfigRefusals, OtherModelsAreUnsupported) {
  expect_error({{"model_type", "llama"}}, ErrorCode::kUnsupported, "\"llama\" found");
  expect_error(Json::object(), ErrorCode::kUnsupported, "model_type: nothing found");
}

TEST(ConfigRefusals, NotAnObject) {
  for (const char* text : {"[]", "3", "null", "\"x\""}) {
    expect_error(Json::parse(text), ErrorCode::kInvalidArgument, "object needed");
  }
  expect_error({{"model_type", "qwen4_exp"}, {"text_config", 3}}, ErrorCode::kInvalidArgument, "text_config");
}

TEST(ConfigRefusals, Quantization) {
  Json json = test::tiny_config();
  const auto with = [&](const char* text) {
    json["quantization"] = Json::parse(text);
    return json;
  };
  expect_error(with(R"({"group_size": 64, "bits": 4, "mode": "mxfp4"})"), ErrorCode::kUnsupported,
               "\"affine\"");
  expect_error(with(R"({"group_size": 64})"), ErrorCode::kUnsupported, "quantization");
  expect_error(with(R"({"group_size": 0, "bits": 4})"), ErrorCode::kInvalidArgument,
               "quantization.group_size");
  expect_error(with(R"({"group_size": 64, "bits": -4})"), ErrorCode::kInvalidArgument, "quantization.bits");
  expect_error(with(R"({"group_size": 64, "bits": 4, "a.b": {"bits": "x"}})"), ErrorCode::kInvalidArgument,
               "quantization.a.b.bits");
  expect_error(with(R"({"quant_method": "gptq"})"), ErrorCode::kUnsupported, "gptq");
  expect_error(with("[4, 64]"), ErrorCode::kInvalidArgument, "quantization");
}

TEST(ConfigRefusals, LongValuesAreCutInMessages) {
  Json json = test::tiny_config();
  json["text_config"]["hidden_size"] = std::string(100000, 'x');
  const auto config = parse_config(json, "config.json");
  ASSERT_FALSE(config.ok());
  EXPECT_LT(config.error().message.size(), 300U);
}

}  // namespace
}  // namespace sluice::spec

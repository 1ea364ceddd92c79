// Models by name, and what may be changed of them.
#include "spec/geometries.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "spec/config.h"

namespace sluice::spec {
namespace {

ModelConfig changed(std::string_view name, const GeometryOverrides& overrides) {
  auto json = override_geometry(named_geometry(name).value(), overrides);
  EXPECT_TRUE(json.ok()) << (json.ok() ? "" : json.error().message);
  return json.ok() ? parse_config(*json, "changed").value() : ModelConfig{};
}

std::string refused(std::string_view name, const GeometryOverrides& overrides) {
  const auto json = override_geometry(named_geometry(name).value(), overrides);
  EXPECT_FALSE(json.ok());
  return json.ok() ? "" : json.error().message;
}

TEST(Geometries, EveryNameIsAModel) {
  ASSERT_EQ(geometry_names().size(), 3U);
  for (const auto name : geometry_names()) {
    const auto json = named_geometry(name);
    ASSERT_TRUE(json) << name;
    const auto config = parse_config(*json, name);
    ASSERT_TRUE(config.ok()) << config.error().message;
    EXPECT_TRUE(config->ple && config->indexer && config->mtp_layers == 1) << name;
  }
  EXPECT_FALSE(named_geometry("flash"));
  EXPECT_FALSE(named_geometry(""));
}

TEST(Geometries, TheReleasedModelHasTwoNamesInAnyCase) {
  const auto config = named_geometry("flash-next");
  EXPECT_EQ(named_geometry("Qwen3.8-Flash-Next"), config);
  EXPECT_EQ(named_geometry("FLASH-NEXT"), config);
  EXPECT_EQ((*config)["text_config"]["layer_types"].size(), 48U);
  EXPECT_EQ((*config)["text_config"]["layer_types"][47], "full_attention");
}

TEST(Geometries, DemoIsTheDemoModelsConfigWithoutQuantization) {
  const auto path = std::string(SLUICE_MODELS) + "/demo/config.json";
  Json file = parse_json(read_text_file(path, 1 << 20).value(), path).value();
  file.erase("quantization");
  file.erase("quantization_config");
  // Whatever the order of the keys.
  EXPECT_EQ(nlohmann::json::parse(dump_json(*named_geometry("demo"))),
            nlohmann::json::parse(dump_json(file)));
}

TEST(Geometries, FewerLayersKeepThePatternOfFullAttention) {
  const ModelConfig c = changed("flash-next", {.layers = 6});
  ASSERT_EQ(c.layer_count(), 6);
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(c.layers[i], i == 3 ? LayerKind::kFull : LayerKind::kLinear);
  }
  EXPECT_EQ(c.ple->layers, std::vector<std::int64_t>{1});
  EXPECT_EQ(changed("tiny", {.layers = 9}).layer_count(), 9);
}

TEST(Geometries, AnNgramEmbeddingOutsideMovesToTheLastLinearLayer) {
  EXPECT_EQ(changed("flash-next", {.layers = 1}).ple->layers, std::vector<std::int64_t>{0});
  Json json = *named_geometry("demo");
  json["text_config"]["ple_layer_ids"] = {2, 7};
  EXPECT_EQ(parse_config(*override_geometry(json, {.layers = 4}), "c")->ple->layers,
            std::vector<std::int64_t>{1});
  json["text_config"]["ple_layer_ids"] = {7};
  EXPECT_EQ(parse_config(*override_geometry(json, {.layers = 4}), "c")->ple->layers,
            std::vector<std::int64_t>{2});
}

TEST(Geometries, ExpertsAndTableCanBeMadeSmaller) {
  const ModelConfig c = changed("flash-next", {.experts = 16, .ngram_base = 1000});
  EXPECT_EQ(c.experts, 16);
  EXPECT_EQ(c.ple->vocab_base, 1000);
  EXPECT_EQ(c.layer_count(), 48);
  // A flat config, as of a text-only export, changes in the same way.
  const Json flat = (*named_geometry("tiny"))["text_config"];
  EXPECT_EQ(parse_config(*override_geometry(flat, {.experts = 8}), "flat")->experts, 8);
}

TEST(Geometries, NonsenseIsRefusedByName) {
  EXPECT_NE(refused("tiny", {.layers = 0}).find("layers 0"), std::string::npos);
  EXPECT_NE(refused("tiny", {.layers = 5000}).find("layers 5000"), std::string::npos);
  EXPECT_NE(refused("flash-next", {.experts = 9}).find("experts 9: needed at least 10"), std::string::npos);
  EXPECT_NE(refused("tiny", {.experts = 1 << 20}).find("num_experts"), std::string::npos);
  EXPECT_NE(refused("tiny", {.ngram_base = 0}).find("ngram_vocab_size_base"), std::string::npos);
  Json plain = *named_geometry("tiny");
  plain["text_config"].erase("ple_layer_ids");
  EXPECT_FALSE(override_geometry(plain, {.ngram_base = 100}).ok());
  EXPECT_FALSE(override_geometry(Json::array(), {}).ok());
}

}  // namespace
}  // namespace sluice::spec

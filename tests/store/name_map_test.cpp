#include "store/name_map.h"

#include <gtest/gtest.h>

namespace sluice::store {
namespace {

void expect(std::string_view name, Naming naming, std::string_view canonical) {
  const MappedName mapped = map_name(name);
  EXPECT_EQ(mapped.naming, naming) << name;
  EXPECT_EQ(mapped.canonical, canonical) << name;
}

TEST(NameMap, AllForms) {
  expect("model.language_model.embed_tokens.weight", Naming::kReleased, "embed_tokens");
  expect("model.language_model.layers.3.self_attn.q_proj.weight", Naming::kReleased,
         "layers.3.self_attn.q_proj");
  expect("model.language_model.layers.0.linear_attn.A_log", Naming::kReleased, "layers.0.linear_attn.A_log");
  expect("language_model.model.layers.0.mlp.switch_mlp.up_proj.scales", Naming::kMlx,
         "layers.0.mlp.switch_mlp.up_proj.scales");
  expect("language_model.lm_head.weight", Naming::kMlx, "lm_head");
  expect("language_model.mtp.fc_hidden.weight", Naming::kMlx, "mtp.fc_hidden");
  expect("mtp.fc_hidden.weight", Naming::kShared, "mtp.fc_hidden");
  expect("lm_head.weight", Naming::kShared, "lm_head");
  expect("model.layers.7.mlp.gate.weight", Naming::kFlat, "layers.7.mlp.gate");
  expect("model.hyper_connection_mixer.hc_norm.weight", Naming::kFlat, "hyper_connection_mixer.hc_norm");
  // Names in `quantization`, without .weight.
  expect("language_model.model.layers.1.ple.ple_embedding.ngram_embedding", Naming::kMlx,
         "layers.1.ple.ple_embedding.ngram_embedding");
}

TEST(NameMap, VisionAndUnknown) {
  expect("model.visual.blocks.0.norm1.weight", Naming::kVision, "");
  expect("vision_tower.patch_embed.proj.weight", Naming::kVision, "");
  expect("model.norm.weight", Naming::kUnknown, "");
  expect("lm_heads.weight", Naming::kUnknown, "");
  expect("language_model.other", Naming::kUnknown, "");
  expect("", Naming::kUnknown, "");
  expect("model.", Naming::kUnknown, "");
}

}  // namespace
}  // namespace sluice::store

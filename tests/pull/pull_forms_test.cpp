// Every form of checkpoint, in any arrangement of shards: the same store as from a folder.
#include "pull/pull_fixture.h"
#include "support/edit_model.h"

namespace sluice::pull {
namespace {

using test::ModelForm;
using test::RandomModel;

class PullForms : public test::PullFixture {};

RandomModel form(ModelForm form) {
  RandomModel model;
  model.form = form;
  return model;
}

/// A shard for each name, whatever the layer.
std::size_t scattered(const std::string& name, std::size_t shards) {
  std::size_t hash = 7;
  for (const char c : name) hash = hash * 31 + static_cast<unsigned char>(c);
  return hash % 1009 % shards;
}

TEST_F(PullForms, Bf16InSeveralPrecisions) {
  serve_model(form(ModelForm::kReleased), 5);
  PullOptions some = options();
  some.pack.experts = {spec::Format::kQ4, spec::Format::kQ2};
  some.pack.method = pack::TierMethod::kTruncate;
  expect_pulled(some);
}

TEST_F(PullForms, MlxOf4Bits) {
  serve_model(form(ModelForm::kMlx), 4);
  expect_pulled(options());
}

TEST_F(PullForms, Fp8Experts) {
  std::filesystem::create_directories(source_);
  RandomModel model = form(ModelForm::kReleased);
  model.config = test::tiny_config();
  model.split_experts = true;
  write_random_model(source_, model);
  test::edit_tensors(source_ / "model.safetensors", [](test::TensorMap& tensors) {
    test::TensorMap scales;
    for (auto& [name, tensor] : tensors) {
      if (name.find(".experts.") == std::string::npos) continue;
      std::vector<std::uint8_t> codes(tensor.bytes.size() / 2);
      for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(i * 37 % 120);
      tensor = test::make_tensor(store::Dtype::kF8E4M3, tensor.shape, codes);
      scales[name + "_scale_inv"] = test::make_tensor<float>(store::Dtype::kF32, {1, 1}, {0.0625F});
    }
    tensors.merge(scales);
  });
  test::split_model(source_, 3);
  serve(source_);
  expect_pulled(options());
}

TEST_F(PullForms, OneFileWithoutAnIndex) {
  serve_model(form(ModelForm::kFlat), 1);
  expect_pulled(options());
}

TEST_F(PullForms, ALayerInDistantShardsAndAShardThatNobodyNeeds) {
  const auto shard_of = [](const std::string& name) -> std::size_t {
    if (name.find("visual") != std::string::npos) return 5;
    if (name.find("layers.1.mlp.experts.gate_up_proj") != std::string::npos) return 3;
    if (name.find("layers.1.mlp.experts.down_proj") != std::string::npos) return 7;
    if (name.find("layers.2.") != std::string::npos) return 4;
    if (name.find("layers.3.") != std::string::npos) return 6;
    return name.starts_with("mtp.") ? 2 : name.find("layers.") == std::string::npos ? 0 : 1;
  };
  RandomModel model = form(ModelForm::kReleased);
  model.config = test::tiny_config();
  std::filesystem::create_directories(source_);
  write_random_model(source_, model);
  test::edit_tensors(source_ / "model.safetensors", [](test::TensorMap& tensors) {
    tensors["model.visual.patch_embed.weight"] = test::make_tensor<std::uint16_t>(
        store::Dtype::kBf16, {300000}, std::vector<std::uint16_t>(300000, 1));
  });
  test::split_model(source_, 8, shard_of);
  serve(source_);
  PullOptions some = options();
  some.shards_on_disk = 2;  // shard 3, and one after the other up to 7
  some.on_plan = [](const PullPlan& plan) {
    EXPECT_EQ(plan.shards, 8U);
    EXPECT_EQ(plan.needed, 7U);
    return Result<void>();
  };
  expect_pulled(some);
  EXPECT_EQ(content_served(test::shard_name(5, 8)), 0U);
  EXPECT_GT(content_served(test::shard_name(7, 8)), 0U);
}

TEST_F(PullForms, TensorsStrewnOverAllShardsNeedAsManyAtOnceAndNoMore) {
  for (const ModelForm which : {ModelForm::kReleased, ModelForm::kMlx}) {
    std::filesystem::remove_all(source_);
    std::filesystem::remove_all(target_);
    serve_model(form(which), 8, [](const std::string& name) { return scattered(name, 8); });
    const auto source = store::open_checkpoint(source_);
    ASSERT_TRUE(source.ok()) << source.error().message;
    const auto outlook = pack::look_ahead(**source, target_, {});
    ASSERT_TRUE(outlook.ok()) << outlook.error().message;
    ASSERT_GT(outlook->files_at_once, 3U);
    PullOptions some = options();
    some.pack.jobs = 8;
    some.shards_on_disk = outlook->files_at_once - 1;
    const auto refused = pull(some);
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.error().message,
                testing::HasSubstr(fmt::format("{} needed at once", outlook->files_at_once)));
    EXPECT_FALSE(std::filesystem::exists(target_));
    some.shards_on_disk = outlook->files_at_once;
    expect_pulled(some);
    some.shards_on_disk = 0;
    some.pack.jobs = 1;
    std::filesystem::remove_all(target_);
    expect_pulled(some);
  }
}

}  // namespace
}  // namespace sluice::pull

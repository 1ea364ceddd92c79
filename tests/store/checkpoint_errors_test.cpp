// Broken, odd and hostile checkpoint folders: each a clear error, never a crash.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/numbers.h"
#include "store/source.h"
#include "support/edit_model.h"
#include "support/random_model.h"
#include "support/temp_folder.h"

namespace sluice::store {
namespace {

using test::ModelForm;
using test::TensorMap;
using testing::HasSubstr;

class CheckpointErrors : public testing::Test {
 protected:
  test::TempFolder folder_;

  void write(ModelForm form = ModelForm::kReleased, bool split = false, int files = 1) {
    test::RandomModel model{.config = test::tiny_config(), .form = form};
    model.split_experts = split;
    model.files = files;
    test::write_random_model(folder_.path(), model);
  }
  void edit(const std::function<void(TensorMap&)>& change) {
    test::edit_tensors(folder_ / "model.safetensors", change);
  }
  void edit_config(const std::function<void(Json&)>& change) {
    auto json = parse_json(*read_text_file(folder_ / "config.json", 1 << 20), "config.json");
    change(*json);
    folder_.write("config.json", dump_json(*json));
  }
  void expect(ErrorCode code, const std::vector<std::string>& parts) {
    const auto source = open_checkpoint(folder_.path());
    ASSERT_FALSE(source.ok()) << parts.front();
    EXPECT_EQ(source.error().code, code) << source.error().message;
    for (const std::string& part : parts) EXPECT_THAT(source.error().message, HasSubstr(part));
  }
};

const std::string kTrunk = "model.language_model.";
const std::string kMlxTrunk = "language_model.model.";
const std::string kPle = "layers.1.ple.ple_embedding.";

test::FixtureTensor zeros(std::vector<std::int64_t> shape, Dtype dtype = Dtype::kBf16) {
  std::size_t bytes = static_cast<std::size_t>(dtype_size(dtype));
  for (const std::int64_t n : shape) bytes *= static_cast<std::size_t>(n);
  return {dtype, std::move(shape), std::vector<std::byte>(bytes)};
}

TEST_F(CheckpointErrors, NoModelFolder) {
  const auto check = [](const std::filesystem::path& path, ErrorCode code, const char* part) {
    const auto source = open_checkpoint(path);
    ASSERT_FALSE(source.ok());
    EXPECT_EQ(source.error().code, code);
    EXPECT_THAT(source.error().message, HasSubstr(path.string()));
    EXPECT_THAT(source.error().message, HasSubstr(part));
  };
  check(folder_ / "nowhere", ErrorCode::kNotFound, "no such folder");
  check(folder_.path(), ErrorCode::kNotFound, "no config.json");
  check(folder_.write("file", "x"), ErrorCode::kInvalidArgument, "not a folder");
  folder_.write("manifest.json", "{}");
  check(folder_.path(), ErrorCode::kNotFound, "packed store");
}

TEST_F(CheckpointErrors, ConfigIsNoJsonOrNoConfig) {
  write();
  folder_.write("config.json", "{\"model_type\": ");
  expect(ErrorCode::kCorrupt, {"config.json", "not valid JSON"});
  folder_.write("config.json", "");
  expect(ErrorCode::kCorrupt, {"config.json"});
  folder_.write("config.json", "{\"model_type\": \"llama\"}");
  expect(ErrorCode::kUnsupported, {"config.json", "llama"});
  folder_.write("config.json", std::string(2 << 20, ' '));
  expect(ErrorCode::kLimit, {"config.json", "2097152 bytes"});
}

TEST_F(CheckpointErrors, NoWeights) {
  write();
  std::filesystem::remove(folder_ / "model.safetensors");
  folder_.write("expected.safetensors", "not a shard");
  expect(ErrorCode::kNotFound, {"no weights found", "model.safetensors.index.json"});
  folder_.write("model.gguf", "GGUF");
  expect(ErrorCode::kNotFound, {"GGUF"});
}

TEST_F(CheckpointErrors, TruncatedByOneByte) {
  write();
  const auto path = folder_ / "model.safetensors";
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  expect(ErrorCode::kCorrupt, {"model.safetensors", "bytes"});
  std::filesystem::resize_file(path, 0);
  expect(ErrorCode::kCorrupt, {"model.safetensors", "0 bytes found"});
}

TEST_F(CheckpointErrors, MissingShards) {
  write(ModelForm::kReleased, false, 3);
  std::filesystem::remove(folder_ / "model-00002-of-00003.safetensors");
  expect(ErrorCode::kNotFound, {"model-00002-of-00003.safetensors is missing"});
  std::filesystem::remove(folder_ / "model.safetensors.index.json");
  expect(ErrorCode::kNotFound, {"2 shards found, 3 needed: number 2 is missing"});
  folder_.write("model-00001-of-00004.safetensors", "");
  expect(ErrorCode::kCorrupt, {"one set needed"});
}

TEST_F(CheckpointErrors, ZeroLengthShard) {
  write(ModelForm::kReleased, false, 3);
  folder_.write("model-00002-of-00003.safetensors", "");
  expect(ErrorCode::kCorrupt, {"model-00002-of-00003.safetensors", "0 bytes found"});
}

TEST_F(CheckpointErrors, IndexMayNotLeaveTheFolder) {
  write();
  for (const char* name : {"/etc/passwd", "../model.safetensors", "a/../../model.safetensors", "", ".."}) {
    folder_.write("model.safetensors.index.json", dump_json({{"weight_map", {{"a", name}}}}));
    expect(ErrorCode::kInvalidArgument, {"index.json", "inside the folder needed"});
  }
}

TEST_F(CheckpointErrors, IndexThatIsNone) {
  write();
  for (const char* text : {"{}", "{\"weight_map\": {}}"}) {
    folder_.write("model.safetensors.index.json", text);
    expect(ErrorCode::kCorrupt, {"index.json", "weight_map"});
  }
  for (const char* text :
       {"", "[]", "{\"weight_map\": {\"a\": 1}}", "{\"weight_map\": {\"a\": {}}}", "3",
        "{\"weight_map\": {\"a\": [\"b\"]}}", "{\"weight_map\": {\"a\": \"b\"}, \"weight_map\": {}}"}) {
    folder_.write("model.safetensors.index.json", text);
    expect(ErrorCode::kCorrupt, {"index.json"});
  }
}

TEST_F(CheckpointErrors, IndexThatLies) {
  write();
  folder_.write(
      "model.safetensors.index.json",
      dump_json({{"weight_map", {{"lm_head.weight", "model.safetensors"}, {"gone", "model.safetensors"}}}}));
  expect(ErrorCode::kCorrupt, {"index.json", "gone", "model.safetensors"});
}

TEST_F(CheckpointErrors, TheSameTensorTwice) {
  write(ModelForm::kReleased, false, 2);
  std::filesystem::remove(folder_ / "model.safetensors.index.json");
  test::edit_tensors(folder_ / "model-00001-of-00002.safetensors", [](TensorMap& tensors) {
    tensors["mtp.fc_hidden"] = zeros({64, 64});
  });
  expect(ErrorCode::kCorrupt, {"mtp.fc_hidden", "model-00001-of-00002.safetensors"});
}

TEST_F(CheckpointErrors, MixedNaming) {
  write();
  edit([](TensorMap& t) { t["model.layers.0.mlp.gate.weight"] = zeros({16, 64}); });
  expect(ErrorCode::kCorrupt, {"naming"});
}

TEST_F(CheckpointErrors, MissingTensorsAreNamed) {
  for (const char* name :
       {"embed_tokens.weight", "hyper_connection_mixer.hc_norm.weight", "layers.0.linear_attn.A_log",
        "layers.2.linear_attn.conv1d.weight", "layers.3.self_attn.indexer.k_layernorm.weight",
        "layers.1.ple.norm_conv.weight", "layers.1.mlp.shared_expert_gate.weight",
        "layers.2.mlp.experts.down_proj", "layers.1.ple.ple_embedding.ngram_heads_offsets"}) {
    write();
    edit([&](TensorMap& t) { ASSERT_EQ(t.erase(kTrunk + name), 1U); });
    std::string canonical = name;
    if (canonical.ends_with(".weight")) canonical.resize(canonical.size() - 7);
    expect(ErrorCode::kNotFound, {canonical, "needed"});
  }
  write();
  edit([](TensorMap& t) { t.erase("lm_head.weight"); });
  expect(ErrorCode::kNotFound, {"lm_head", "[512, 64]"});
}

TEST_F(CheckpointErrors, AHalfMtpHeadIsAnError) {
  write();
  edit([](TensorMap& t) { t.erase("mtp.layers.0.self_attn.o_proj.weight"); });
  expect(ErrorCode::kNotFound, {"mtp.layers.0.self_attn.o_proj"});
}

TEST_F(CheckpointErrors, WrongShapes) {
  const std::vector<std::pair<std::string, std::vector<std::int64_t>>> cases = {
      {kTrunk + "embed_tokens.weight", {64, 512}},
      {kTrunk + "layers.0.linear_attn.conv1d.weight", {4, 1, 256}},
      {kTrunk + "layers.0.linear_attn.conv1d.weight", {1024}},
      {kTrunk + "layers.0.linear_attn.dt_bias", {1, 4}},
      {kTrunk + "layers.3.self_attn.q_proj.weight", {128, 64}},
      {kTrunk + "layers.0.mlp.gate.weight", {15, 64}},
      {kTrunk + "layers.0.mlp.experts.gate_up_proj", {16, 64, 128}},
      {kTrunk + "layers.0.mlp.experts.down_proj", {15, 64, 64}},
      {kTrunk + kPle + "ngram_embedding.shard_2.weight", {32, 1024}},
      {kTrunk + kPle + "ngram_embedding.shard_2.weight", {32768}},
      {kTrunk + "hyper_connection_mixer.hc_norm.weight", {0}}};
  for (const auto& [name, shape] : cases) {
    write();
    edit([&, &n = name, &s = shape](TensorMap& t) { t[n] = zeros(s); });
    expect(ErrorCode::kCorrupt, {name, shape_text(shape) + " found", "needed"});
  }
}

TEST_F(CheckpointErrors, WrongDtypes) {
  write();
  edit([](TensorMap& t) { t["lm_head.weight"] = zeros({512, 64}, Dtype::kI8); });
  expect(ErrorCode::kUnsupported, {"lm_head.weight", "I8 found"});
  write();
  edit([](TensorMap& t) { t["lm_head.weight"] = zeros({512, 8}, Dtype::kU32); });
  expect(ErrorCode::kCorrupt, {"lm_head.weight", "U32 without .scales"});
  write();
  edit([](TensorMap& t) { t["lm_head.weight"] = zeros({512, 64}, Dtype::kF8E4M3); });
  expect(ErrorCode::kUnsupported, {"lm_head.weight", "F8_E4M3 found"});
  write();
  edit([](TensorMap& t) { t[kTrunk + "layers.0.linear_attn.A_log"] = zeros({4}, Dtype::kF64); });
  expect(ErrorCode::kUnsupported, {"A_log", "F64 found"});
  write();
  edit([](TensorMap& t) { t[kTrunk + kPle + "layer_multipliers"] = zeros({3}, Dtype::kI32); });
  expect(ErrorCode::kCorrupt, {"layer_multipliers", "I32 found, I64 needed"});
}

TEST_F(CheckpointErrors, ConfigOfAnotherSize) {
  write();
  edit_config([](Json& c) { c["text_config"]["hidden_size"] = 128; });
  expect(ErrorCode::kCorrupt, {"embed_tokens", "[512, 64] found, [512, 128] needed"});
  write();
  edit_config([](Json& c) { c["text_config"]["num_experts"] = 15; });
  expect(ErrorCode::kCorrupt, {"[16, 64] found, [15, 64] needed"});
}

TEST_F(CheckpointErrors, FewerLayersInTheConfigThanInTheFile) {
  write();
  edit_config([](Json& c) {
    c["text_config"]["num_hidden_layers"] = 3;
    c["text_config"]["layer_types"].erase(3);
  });
  expect(ErrorCode::kCorrupt, {"layers.3.", "num_hidden_layers (3)"});
}

TEST_F(CheckpointErrors, TooManySplitExperts) {
  write(ModelForm::kReleased, true);
  edit([](TensorMap& t) { t[kTrunk + "layers.0.mlp.experts.16.gate_proj.weight"] = zeros({64, 64}); });
  expect(ErrorCode::kCorrupt, {"experts.16.gate_proj", "16 experts"});
}

TEST_F(CheckpointErrors, OneSplitExpertMissing) {
  write(ModelForm::kReleased, true);
  edit([](TensorMap& t) { t.erase(kTrunk + "layers.2.mlp.experts.7.up_proj.weight"); });
  expect(ErrorCode::kNotFound, {"layers.2.mlp.experts.7.up_proj", "[64, 64]"});
}

TEST_F(CheckpointErrors, NoExpertsAtAll) {
  write();
  edit([](TensorMap& t) {
    t.erase(kTrunk + "layers.2.mlp.experts.gate_up_proj");
    t.erase(kTrunk + "layers.2.mlp.experts.down_proj");
  });
  expect(ErrorCode::kNotFound, {"no experts found for layers.2.mlp."});
}

TEST_F(CheckpointErrors, ExpertFormatsMustAgree) {
  write();
  edit([](TensorMap& t) { t[kTrunk + "layers.2.mlp.experts.down_proj"] = zeros({16, 64, 64}, Dtype::kF32); });
  expect(ErrorCode::kUnsupported, {"layers.2.mlp.experts.down_proj", "32 bits", "16 bits"});
  write(ModelForm::kMlx);
  edit([](TensorMap& t) {
    const std::string name = "mtp.layers.0.mlp.switch_mlp.up_proj.";
    t.erase(name + "scales");
    t.erase(name + "biases");
    t[name + "weight"] = zeros({16, 64, 64});
  });
  expect(ErrorCode::kUnsupported, {"mtp.layers.0.mlp.switch_mlp.up_proj", "16 bits"});
}

TEST_F(CheckpointErrors, QuantisedTensorsThatContradictTheConfig) {
  const std::string head = "language_model.lm_head";
  write(ModelForm::kMlx);
  edit_config([](Json& c) { c["quantization"]["bits"] = 8; });
  expect(ErrorCode::kCorrupt, {"embed_tokens", "[512, 8] found, [512, 16] needed"});
  write(ModelForm::kMlx);
  edit_config([](Json& c) { c["quantization"]["group_size"] = 32; });
  expect(ErrorCode::kCorrupt, {"embed_tokens", "[512, 1] found, [512, 2] needed"});
  write(ModelForm::kMlx);
  edit_config([](Json& c) { c["quantization"]["group_size"] = 128; });
  expect(ErrorCode::kCorrupt, {"group_size 128", "divisor of the 64 columns"});
  write(ModelForm::kMlx);
  edit_config([](Json& c) { c["quantization"]["bits"] = 6; });
  expect(ErrorCode::kUnsupported, {"6 bits", "4 or 8"});
  write(ModelForm::kMlx);
  edit_config([](Json& c) { c["quantization"]["group_size"] = 16; });
  expect(ErrorCode::kUnsupported, {"group_size 16", "32, 64 or 128"});
  write(ModelForm::kMlx);
  edit_config([&](Json& c) { c["quantization"][head] = false; });
  expect(ErrorCode::kCorrupt, {head, "false"});
  write(ModelForm::kMlx);
  edit_config([](Json& c) { c.erase("quantization"); });
  expect(ErrorCode::kCorrupt, {"quantization"});
  write(ModelForm::kMlx);
  edit([&](TensorMap& t) { t.erase(head + ".biases"); });
  expect(ErrorCode::kNotFound, {"lm_head.biases", "[512, 1]"});
  write(ModelForm::kMlx);
  edit([&](TensorMap& t) { t[head + ".weight"] = zeros({512, 64}); });
  expect(ErrorCode::kCorrupt, {head, "BF16 found, U32"});
  write(ModelForm::kMlx);
  edit([&](TensorMap& t) { t[head + ".scales"] = zeros({512, 1}, Dtype::kI32); });
  expect(ErrorCode::kUnsupported, {head + ".scales", "I32 found"});
}

TEST_F(CheckpointErrors, ScalesThatBfloat16CannotHold) {
  write(ModelForm::kMlx);
  edit([](TensorMap& t) {
    t["language_model.lm_head.scales"] =
        test::make_tensor<float>(Dtype::kF32, {512, 1}, std::vector<float>(512, 0.1F));
  });
  const auto source = open_checkpoint(folder_.path());
  ASSERT_TRUE(source.ok());
  const auto head = (*source)->read_dense("lm_head");
  ASSERT_FALSE(head.ok());
  EXPECT_EQ(head.error().code, ErrorCode::kUnsupported);
  EXPECT_THAT(head.error().message, HasSubstr("language_model.lm_head.scales"));
}

TEST_F(CheckpointErrors, NgramTableTooSmall) {
  write();
  edit([](TensorMap& t) { t.erase(kTrunk + kPle + "ngram_embedding.shard_3.weight"); });
  expect(ErrorCode::kCorrupt, {"layer 1", "rows found", "3 shards found"});
  write();
  edit([](TensorMap& t) { t.erase(kTrunk + kPle + "ngram_embedding.shard_1.weight"); });
  expect(ErrorCode::kNotFound, {"ngram_embedding.shard_1"});
  write();
  edit([](TensorMap& t) {
    for (int i = 0; i < 4; ++i) t.erase(kTrunk + kPle + fmt::format("ngram_embedding.shard_{}.weight", i));
  });
  expect(ErrorCode::kNotFound, {"ngram_embedding"});
}

TEST_F(CheckpointErrors, HashConstantsThatContradict) {
  const auto set = [&](const char* name, const std::vector<std::int64_t>& values) {
    write();
    edit([&](TensorMap& t) {
      t[kTrunk + kPle + name] = test::make_tensor(Dtype::kI64, {std::ssize(values)}, values);
    });
  };
  set("ngram_heads_vocab_sizes", {1009, 1013, 1019});
  expect(ErrorCode::kCorrupt, {"ngram_heads_vocab_sizes", "[3] found, [4] needed"});
  set("ngram_heads_vocab_sizes", {1009, 0, 1019, 1021});
  expect(ErrorCode::kCorrupt, {"ngram_heads_vocab_sizes[1]: 0 found"});
  set("ngram_heads_vocab_sizes", {1009, -1, 1019, 1021});
  expect(ErrorCode::kCorrupt, {"ngram_heads_vocab_sizes[1]: -1 found"});
  set("ngram_heads_offsets", {0, 1009, std::int64_t{1} << 31, 5000});
  expect(ErrorCode::kCorrupt, {"ngram_heads_offsets[2]: 2147483648 found"});
}

// faults.md 2: folded or raw? A median in between is neither.
TEST_F(CheckpointErrors, UnclearNormsAreRefused) {
  const auto shift = [this](float by, bool mtp) {
    write(ModelForm::kMlx);
    edit([&](TensorMap& t) {
      for (auto& [name, tensor] : t) {
        const bool norm = name.ends_with("_norm.weight") || name.ends_with("layernorm.weight") ||
                          name.find(".ple.norm_") != std::string::npos;
        if (!norm || name.starts_with("mtp.") != mtp) continue;
        for (std::size_t i = 0; i < tensor.bytes.size(); i += 2) {
          BFloat16 b;
          std::memcpy(&b, tensor.bytes.data() + i, 2);
          b = to_bfloat16(to_float(b) + by);
          std::memcpy(tensor.bytes.data() + i, &b, 2);
        }
      }
    });
  };
  shift(-0.5F, false);
  expect(ErrorCode::kUnsupported, {"norm weights of the trunk", "median of means 0."});
  shift(-0.5F, true);
  expect(ErrorCode::kUnsupported, {"norm weights of the MTP head"});
  shift(std::numeric_limits<float>::quiet_NaN(), false);
  expect(ErrorCode::kUnsupported, {"norm weights of the trunk"});
  // Each of the two parts on its own: a raw MTP head beside a folded trunk is clear.
  shift(-1.0F, true);
  EXPECT_TRUE(open_checkpoint(folder_.path()).ok());
}

TEST_F(CheckpointErrors, FileCutWhileOpen) {
  write(ModelForm::kMlx);
  const auto source = open_checkpoint(folder_.path());
  ASSERT_TRUE(source.ok());
  std::filesystem::resize_file(folder_ / "model.safetensors", 4096);
  std::vector<std::byte> record(static_cast<std::size_t>((*source)->record_layout().bytes()));
  EXPECT_EQ((*source)->read_record(0, 0, 0, record).error().code, ErrorCode::kCorrupt);
  EXPECT_EQ((*source)->read_dense("layers.0.linear_attn.out_proj").error().code, ErrorCode::kCorrupt);
}

}  // namespace
}  // namespace sluice::store

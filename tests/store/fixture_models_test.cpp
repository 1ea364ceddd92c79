// The checkpoints of the repository, opened and compared with the bytes of their files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/numbers.h"
#include "store/source.h"
#include "support/fixtures.h"
#include "support/weights.h"

namespace sluice::store {
namespace {

const std::filesystem::path kData = SLUICE_TEST_DATA;
const std::filesystem::path kModels = SLUICE_MODELS;

std::unique_ptr<WeightSource> open(const std::filesystem::path& folder) {
  auto source = open_checkpoint(folder);
  if (!source) {
    ADD_FAILURE() << source.error().message;
    return nullptr;
  }
  return std::move(*source);
}

std::vector<float> dense(const WeightSource& source, std::string_view name) {
  auto tensor = source.read_dense(name);
  if (!tensor) {
    ADD_FAILURE() << tensor.error().message;
    return {};
  }
  EXPECT_EQ(tensor->name, name);
  return test::dense_values(*tensor);
}

std::vector<float> plus_one(std::vector<float> values) {
  for (float& v : values) v = 1.0F + v;
  return values;
}

/// Values of an MLX matrix straight from its file.
std::vector<float> dequantised(const test::Fixture& file, const std::string& module, int bits,
                               std::size_t group) {
  const auto words = file.ints(module + ".weight");
  const auto scales = file.floats(module + ".scales"), biases = file.floats(module + ".biases");
  const std::size_t per_word = 32 / static_cast<std::size_t>(bits);
  std::vector<float> values(words.size() * per_word);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto code =
        (words[i / per_word] >> (static_cast<std::size_t>(bits) * (i % per_word))) & ((1 << bits) - 1);
    values[i] = static_cast<float>(code) * scales[i / group] + biases[i / group];
  }
  return values;
}

TEST(FixtureModels, TinyReadsAsItsFileSays) {
  const auto tiny = open(kData / "model/tiny");
  ASSERT_NE(tiny, nullptr);
  EXPECT_EQ(tiny->form(), "bf16");
  EXPECT_TRUE(tiny->has_mtp());
  EXPECT_TRUE(tiny->missing().empty());
  ASSERT_EQ(tiny->files().size(), 1U);  // neither expected nor modules
  EXPECT_EQ(tiny->files()[0].name, "model.safetensors");
  EXPECT_EQ(tiny->files()[0].bytes, 15323392U);

  const auto file = test::Fixture::load(kData / "model/tiny/model.safetensors");
  const std::string m = "model.language_model.";
  EXPECT_EQ(dense(*tiny, "embed_tokens"), file.floats(m + "embed_tokens.weight"));
  EXPECT_EQ(dense(*tiny, "lm_head"), file.floats("lm_head.weight"));
  EXPECT_EQ(dense(*tiny, "layers.0.linear_attn.A_log"), file.floats(m + "layers.0.linear_attn.A_log"));
  EXPECT_EQ(dense(*tiny, "layers.0.linear_attn.conv1d"),
            file.floats(m + "layers.0.linear_attn.conv1d.weight"));
  EXPECT_EQ(dense(*tiny, "layers.0.linear_attn.norm"), file.floats(m + "layers.0.linear_attn.norm.weight"));
  EXPECT_EQ(dense(*tiny, "layers.2.self_attn.q_norm"),
            plus_one(file.floats(m + "layers.2.self_attn.q_norm.weight")));
  EXPECT_EQ(dense(*tiny, "mtp.pre_fc_norm_hidden"), plus_one(file.floats("mtp.pre_fc_norm_hidden.weight")));
  EXPECT_EQ(dense(*tiny, "mtp.layers.0.mlp.gate"), file.floats("mtp.layers.0.mlp.gate.weight"));
  const auto conv = tiny->read_dense("layers.1.ple.conv1d");
  ASSERT_TRUE(conv.ok());
  EXPECT_EQ(conv->format, spec::Format::kF32);
  EXPECT_THAT(conv->shape, testing::ElementsAre(1024, 4));
  const auto qkv = tiny->read_dense("layers.0.linear_attn.in_proj_qkv");
  ASSERT_TRUE(qkv.ok());
  EXPECT_EQ(qkv->format, spec::Format::kBf16);
}

TEST(FixtureModels, TinyRecords) {
  const auto tiny = open(kData / "model/tiny");
  ASSERT_NE(tiny, nullptr);
  const auto file = test::Fixture::load(kData / "model/tiny/model.safetensors");
  const spec::RecordLayout layout = tiny->record_layout();
  EXPECT_EQ(layout.format, spec::Format::kBf16);
  EXPECT_EQ(layout.bytes(), 3 * 64 * 256 * 2);
  std::vector<std::byte> record(static_cast<std::size_t>(layout.bytes()));
  for (const std::int64_t layer : {0, 4, 5}) {
    const std::string prefix = layer == 5 ? "mtp.layers.0.mlp.experts."
                                          : fmt::format("model.language_model.layers.{}.mlp.experts.", layer);
    const auto both = file.floats(prefix + "gate_up_proj"), down = file.floats(prefix + "down_proj");
    for (const std::int64_t e : {0, 7, 11}) {
      ASSERT_TRUE(tiny->read_record(0, layer, e, record).ok());
      constexpr std::int64_t kOne = 64 * 256;
      const auto part = [&](const std::vector<float>& all, std::int64_t from) {
        return std::vector<float>(all.begin() + from, all.begin() + from + kOne);
      };
      EXPECT_EQ(test::record_values(layout, record, 0), part(both, 2 * e * kOne));
      EXPECT_EQ(test::record_values(layout, record, 1), part(both, (2 * e + 1) * kOne));
      EXPECT_EQ(test::record_values(layout, record, 2), part(down, e * kOne));
    }
  }
}

TEST(FixtureModels, TinyTable) {
  const auto tiny = open(kData / "model/tiny");
  ASSERT_NE(tiny, nullptr);
  const auto file = test::Fixture::load(kData / "model/tiny/model.safetensors");
  const std::string prefix = "model.language_model.layers.1.ple.ple_embedding.";
  const auto hash = tiny->ngram_hash(1);
  ASSERT_TRUE(hash.ok());
  EXPECT_EQ(hash->multipliers, file.ints(prefix + "layer_multipliers"));
  EXPECT_EQ(hash->eos, 2);
  EXPECT_EQ(hash->rows, 4 * 544);
  EXPECT_EQ(tiny->ngram_bytes(1), 4U * 544 * 32 * 2);
  const std::vector<std::int64_t> rows = {0, 543, 544, 2175, 1000};
  std::vector<float> out(rows.size() * 32);
  ASSERT_TRUE(tiny->read_ngram_rows(1, rows, out).ok());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const auto shard = file.floats(prefix + fmt::format("ngram_embedding.shard_{}.weight", rows[i] / 544));
    const auto from = shard.begin() + rows[i] % 544 * 32;
    EXPECT_EQ(std::vector<float>(out.begin() + static_cast<std::ptrdiff_t>(i * 32),
                                 out.begin() + static_cast<std::ptrdiff_t>(i * 32 + 32)),
              std::vector<float>(from, from + 32));
  }
}

TEST(FixtureModels, Tiny4ReadsAsItsFileSays) {
  const auto tiny = open(kData / "model/tiny4");
  ASSERT_NE(tiny, nullptr);
  EXPECT_EQ(tiny->form(), "mlx-4bit");
  EXPECT_TRUE(tiny->has_mtp());
  const auto file = test::Fixture::load(kData / "model/tiny4/model.safetensors");
  const std::string m = "language_model.model.";
  EXPECT_EQ(dense(*tiny, "lm_head"), dequantised(file, "language_model.lm_head", 4, 64));
  EXPECT_EQ(dense(*tiny, "layers.0.attn_hyper_connection.block_inject_weight"),
            dequantised(file, m + "layers.0.attn_hyper_connection.block_inject_weight", 4, 64));
  EXPECT_EQ(dense(*tiny, "layers.0.mlp.gate"), file.floats(m + "layers.0.mlp.gate.weight"));
  EXPECT_EQ(dense(*tiny, "layers.0.linear_attn.conv1d"),
            file.floats(m + "layers.0.linear_attn.conv1d.weight"));
  // Folded norms come as they are.
  EXPECT_EQ(dense(*tiny, "layers.2.self_attn.k_norm"), file.floats(m + "layers.2.self_attn.k_norm.weight"));
  EXPECT_EQ(dense(*tiny, "mtp.hyper_connection_mixer.hc_norm"),
            file.floats("mtp.hyper_connection_mixer.hc_norm.weight"));
  EXPECT_EQ(dense(*tiny, "layers.0.linear_attn.norm"), file.floats(m + "layers.0.linear_attn.norm.weight"));

  const spec::RecordLayout layout = tiny->record_layout();
  EXPECT_EQ(layout.format, spec::Format::kQ4);
  EXPECT_EQ(layout.geometry.group, 64);
  std::vector<std::byte> record(static_cast<std::size_t>(layout.bytes()));
  ASSERT_TRUE(tiny->read_record(0, 3, 9, record).ok());
  int which = 0;
  for (const char* name : {"gate_proj", "up_proj", "down_proj"}) {
    const auto all = dequantised(file, m + "layers.3.mlp.switch_mlp." + name, 4, 64);
    const auto from = all.begin() + 9 * 64 * 256;
    EXPECT_EQ(test::record_values(layout, record, which++), std::vector<float>(from, from + 64 * 256))
        << name;
  }

  const std::vector<std::int64_t> rows = {544 * 2 + 77};
  std::vector<float> out(32);
  ASSERT_TRUE(tiny->read_ngram_rows(1, rows, out).ok());
  const auto shard = dequantised(file, m + "layers.1.ple.ple_embedding.ngram_embedding.shards.2", 4, 32);
  EXPECT_EQ(out, std::vector<float>(shard.begin() + 77 * 32, shard.begin() + 78 * 32));
}

// Both forms of one model: the effective multipliers agree, up to the rounding of the folded ones.
TEST(FixtureModels, NormsOfBothFormsAgree) {
  const auto raw = open(kData / "model/tiny"), folded = open(kData / "model/tiny4");
  ASSERT_TRUE(raw && folded);
  for (const char* name :
       {"hyper_connection_mixer.hc_norm", "layers.2.self_attn.q_norm", "layers.1.ple.norm_conv",
        "layers.4.self_attn.indexer.k_layernorm", "mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden",
        "mtp.layers.0.self_attn.k_norm", "layers.3.linear_attn.norm"}) {
    const auto a = dense(*raw, name), b = dense(*folded, name);
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i)
      ASSERT_NEAR(a[i], b[i], 0.008F * std::fabs(a[i]) + 1e-6F) << name;
  }
}

TEST(FixtureModels, Demo) {
  const auto demo = open(kModels / "demo");
  ASSERT_NE(demo, nullptr);
  EXPECT_EQ(demo->form(), "mlx-4bit");
  EXPECT_TRUE(demo->has_mtp());
  EXPECT_TRUE(demo->missing().empty());
  EXPECT_EQ(demo->ngram_hash(1)->rows, 4 * 32896);
  const ParameterCounts p = demo->parameters();
  EXPECT_EQ(p.experts, 8U * 32 * 3 * 64 * 256);
  EXPECT_EQ(p.ngram, 4U * 32896 * 32);
  EXPECT_EQ(p.embed, 4096U * 256);
  EXPECT_EQ(p.head, 4096U * 256);
  EXPECT_EQ(p.vision, 0U);
  EXPECT_EQ(p.total(), p.experts + p.ngram + p.mtp + p.delta_net + p.attention + p.hyper + p.embed + p.head +
                           p.shared_experts + p.routers + p.ple);
}

TEST(FixtureModels, BadRequestsAreErrors) {
  const auto tiny = open(kData / "model/tiny");
  ASSERT_NE(tiny, nullptr);
  EXPECT_EQ(tiny->read_dense("layers.9.mlp.gate").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(tiny->read_dense("").error().code, ErrorCode::kNotFound);
  std::vector<std::byte> record(static_cast<std::size_t>(tiny->record_layout().bytes()));
  for (const auto& [layer, expert] : std::vector<std::pair<int, int>>{{-1, 0}, {6, 0}, {0, -1}, {0, 12}}) {
    EXPECT_EQ(tiny->read_record(0, layer, expert, record).error().code, ErrorCode::kInvalidArgument);
  }
  record.pop_back();
  EXPECT_EQ(tiny->read_record(0, 0, 0, record).error().code, ErrorCode::kInvalidArgument);
  std::vector<float> out(32);
  EXPECT_EQ(tiny->read_ngram_rows(1, std::vector<std::int64_t>{2176}, out).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(tiny->read_ngram_rows(1, std::vector<std::int64_t>{-1}, out).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(tiny->read_ngram_rows(1, std::vector<std::int64_t>{1, 2}, out).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(tiny->read_ngram_rows(0, std::vector<std::int64_t>{1}, out).error().code,
            ErrorCode::kInvalidArgument);
  EXPECT_FALSE(tiny->ngram_hash(0).ok());
  EXPECT_EQ(tiny->ngram_bytes(0), 0U);
}

}  // namespace
}  // namespace sluice::store

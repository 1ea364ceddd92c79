// Models of the family with other geometries, made at random: the SIMD path against the scalar reference, and
// invariants that hold for any weights.
#include <gtest/gtest.h>

#include <random>

#include "backend/cpu/cpu_backend.h"
#include "decode/logits_run.h"
#include "support/edit_model.h"
#include "support/loaded_model.h"
#include "support/random_model.h"
#include "support/temp_folder.h"

namespace sluice {
namespace {

struct Geometry {
  std::string name;
  std::function<void(Json& text)> change;
  test::ModelForm form = test::ModelForm::kReleased;
};

std::vector<std::int32_t> random_ids(std::size_t count, std::uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < count; ++i) ids.push_back(static_cast<std::int32_t>(random() % 512));
  return ids;
}

decode::LogitsRun run(model::Model& model, std::span<const std::int32_t> ids,
                      const decode::LogitsRunOptions& options = {}) {
  auto result = decode::run_logits(model, ids, options);
  EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
  return result.ok() ? std::move(result).value() : decode::LogitsRun{};
}

class GeometryTest : public testing::TestWithParam<Geometry> {};

TEST_P(GeometryTest, RunsAndAgreesWithTheScalarReferenceHoweverItIsSplit) {
  const test::TempFolder folder;
  test::RandomModel spec{.config = test::tiny_config(), .form = GetParam().form};
  GetParam().change(spec.config["text_config"]);
  test::write_random_model(folder.path(), spec);
  auto cpu = test::load_model(folder.path(), "cpu", {}, 2);
  auto scalar = test::load_model(folder.path(), "scalar");
  ASSERT_NE(cpu.model, nullptr);
  ASSERT_NE(scalar.model, nullptr);
  const auto ids = random_ids(90);
  const bool mtp = cpu.model->has_mtp();
  const auto gold = run(*scalar.model, ids, {.mtp = mtp});
  const auto whole = run(*cpu.model, ids, {.mtp = mtp});
  EXPECT_LE(test::relative_error(whole.logits, gold.logits), 1e-4);
  EXPECT_LE(test::relative_error(whole.mtp_logits, gold.mtp_logits), 1e-4);
  for (const auto& split :
       {decode::LogitsRunOptions{.chunk = 7, .mtp = mtp}, decode::LogitsRunOptions{.rows = 3, .mtp = mtp}}) {
    const auto parts = run(*cpu.model, ids, split);
    EXPECT_EQ(parts.logits, whole.logits);
    EXPECT_EQ(parts.mtp_logits, whole.mtp_logits);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, GeometryTest,
    testing::Values(Geometry{"as_it_is", [](Json&) {}},
                    Geometry{"mlx", [](Json& text) { text["hidden_size"] = 128; }, test::ModelForm::kMlx},
                    Geometry{"flat", [](Json&) {}, test::ModelForm::kFlat},
                    Geometry{"no_mtp", [](Json& text) { text["mtp_num_hidden_layers"] = 0; }},
                    Geometry{"no_ple", [](Json& text) { text["ple_layer_ids"] = nullptr; }},
                    Geometry{"no_indexer",
                             [](Json& text) {
                               for (const char* key :
                                    {"indexer_n_heads", "indexer_kv_heads", "indexer_head_dim",
                                     "indexer_budget", "indexer_compress_ratio"}) {
                                 text.erase(key);
                               }
                             }},
                    Geometry{"two_streams", [](Json& text) { text["hc_count"] = 2; }},
                    Geometry{"six_streams", [](Json& text) { text["hc_count"] = 6; }},
                    Geometry{"one_kv_head", [](Json& text) { text["num_key_value_heads"] = 1; }},
                    Geometry{"all_full_after_the_ple",
                             [](Json& text) {
                               text["layer_types"] = {"full_attention", "linear_attention",
                                                      "qwen_sparse_attention", "deepseek_sparse_attention"};
                             }},
                    Geometry{"only_linear",
                             [](Json& text) {
                               text["layer_types"] = std::vector<std::string>(4, "linear_attention");
                               text["mtp_num_hidden_layers"] = 0;
                             }},
                    Geometry{"yarn",
                             [](Json& text) {
                               text["rope_parameters"]["rope_type"] = "yarn";
                               text["rope_parameters"]["factor"] = 4.0;
                               text["rope_parameters"]["original_max_position_embeddings"] = 32;
                             }},
                    Geometry{"silu_gate", [](Json& text) { text["output_gate_type"] = "silu"; }},
                    Geometry{"raw_router_weights", [](Json& text) { text["norm_topk_prob"] = false; }},
                    Geometry{"every_expert",
                             [](Json& text) { text["num_experts_per_tok"] = text["num_experts"]; }},
                    Geometry{"four_grams",
                             [](Json& text) {
                               text["ngram_size"] = 4;
                               text["ple_embed_dim"] = 96;
                               text["heads_per_ngram"] = 2;
                             }}),
    [](const auto& tested) { return tested.param.name; });

// The indexer can only choose everything when the budget covers the context.
TEST(Selection, EqualsDenseAttentionWithinTheBudgetAndDiffersBeyond) {
  const test::TempFolder folder;
  test::RandomModel spec{.config = test::tiny_config()};
  spec.config["text_config"]["indexer_budget"] = 16;
  test::write_random_model(folder.path(), spec);
  auto sparse = test::load_model(folder.path());
  auto dense = test::load_model(folder.path(), "cpu", {.dense_attention = true});
  ASSERT_NE(sparse.model, nullptr);
  const auto ids = random_ids(64);
  const auto a = run(*sparse.model, ids).logits;
  const auto b = run(*dense.model, ids).logits;
  // 16 tokens of budget and a tail of up to 3: the first choice is made when 20 tokens are seen.
  const std::size_t vocab = 512;
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + 19 * vocab, b.begin()));
  EXPECT_FALSE(std::equal(a.begin() + 19 * vocab, a.end(), b.begin() + 19 * vocab));
}

TEST(Selection, LogitsAreTheSameBitsInEveryRunAndOnAnyNumberOfThreads) {
  const test::TempFolder folder;
  test::RandomModel spec{.config = test::tiny_config()};
  spec.config["text_config"]["indexer_budget"] = 64;
  spec.config["text_config"]["max_position_embeddings"] = 4096;
  test::write_random_model(folder.path(), spec);
  const auto ids = random_ids(300);
  std::vector<float> first;
  for (const int threads : {1, 2, 3, 2, 1}) {
    auto loaded = test::load_model(folder.path(), "cpu", {}, threads);
    ASSERT_NE(loaded.model, nullptr);
    const auto logits = run(*loaded.model, ids, {.chunk = 150}).logits;
    if (first.empty()) first = logits;
    EXPECT_EQ(logits, first) << threads << " threads";
  }
}

// Counts what is allocated while it lives.
class CountingBackend final : public backend::CpuBackend {
 public:
  CountingBackend() : CpuBackend(1) {}
  Result<std::unique_ptr<backend::Buffer>> allocate(std::size_t bytes) override {
    allocated += bytes;
    return CpuBackend::allocate(bytes);
  }
  std::size_t allocated = 0;
};

// A prefill's memory is bounded by its chunk: scores and token lists are made a tile of rows at a time.
TEST(Selection, APrefillOfAnyLengthAllocatesNoMoreThanATileOfScores) {
  const test::TempFolder folder;
  test::RandomModel spec{.config = test::tiny_config()};
  spec.config["text_config"]["indexer_budget"] = 16;
  spec.config["text_config"]["max_position_embeddings"] = 65536;
  test::write_random_model(folder.path(), spec);
  CountingBackend backend;
  auto loaded = model::Model::load(std::move(store::open_checkpoint(folder.path())).value(), backend,
                                   {.max_rows = 128});
  ASSERT_TRUE(loaded.ok());
  const auto state = std::move((*loaded)->new_state(8192)).value();
  const auto ids = random_ids(1024);
  const std::size_t before = backend.allocated;
  for (std::size_t at = 0; at < ids.size(); at += 128) {
    const model::Segment segment{state.get(), std::span(ids).subspan(at, 128)};
    ASSERT_TRUE((*loaded)->forward(std::span(&segment, 1), {}).ok());
    ASSERT_TRUE(state->commit(128).ok());
  }
  // 1,024 tokens are 256 blocks; a tile has room for 1,024 at least. All rows at once would take four times
  // this.
  EXPECT_EQ(backend.allocated - before, static_cast<std::size_t>(model::kSelectTile) * 1024 * sizeof(float));
}

TEST(Invariants, WithoutInjectionWeightsAWriteAddsTheOutputOnce) {
  // model.md 10.2: Inject = 0 gives a_s = 2 sigmoid(0) = 1 for every stream, so that the streams stay equal
  // until something else tells them apart. Without a PLE nothing does.
  const test::TempFolder folder;
  test::RandomModel spec{.config = test::tiny_config()};
  spec.config["text_config"]["ple_layer_ids"] = nullptr;
  test::write_random_model(folder.path(), spec);
  test::edit_tensors(folder.path() / "model.safetensors", [](test::TensorMap& tensors) {
    for (auto& [name, tensor] : tensors) {
      if (name.find("block_inject_weight") != std::string::npos)
        std::fill(tensor.bytes.begin(), tensor.bytes.end(), std::byte{});
    }
  });
  auto loaded = test::load_model(folder.path());
  ASSERT_NE(loaded.model, nullptr);
  const auto wide = run(*loaded.model, random_ids(9), {.wide = true}).wide;
  const auto hidden = static_cast<std::size_t>(loaded.model->config().hidden);
  for (const auto& layer : wide) {
    for (std::size_t row = 0; row < 9; ++row) {
      for (std::size_t i = 0; i < hidden; ++i) {
        for (std::size_t stream = 1; stream < 4; ++stream) {
          ASSERT_EQ(layer[(row * 4 + stream) * hidden + i], layer[row * 4 * hidden + i]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace sluice

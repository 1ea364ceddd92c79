// The model against the values the reference library computes for the fixture checkpoints.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "backend/gpu/cuda/cuda_device.h"
#include "backend/gpu/emulated/emulated_device.h"
#include "decode/generate.h"
#include "decode/logits_run.h"
#include "model/close_choices.h"
#include "support/fixtures.h"
#include "support/loaded_model.h"

namespace sluice {
namespace {

const std::filesystem::path kModels = std::filesystem::path(SLUICE_TEST_DATA) / "model";

struct Case {
  std::string folder;
  std::string backend;
};

class Reference : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    loaded_ = test::load_model(kModels / GetParam().folder, GetParam().backend);
    ASSERT_NE(loaded_.model, nullptr);
    expected_ = test::Fixture::load(kModels / GetParam().folder / "expected.safetensors");
  }
  static decode::LogitsRun run(model::Model& model, const std::vector<std::int32_t>& ids,
                               const decode::LogitsRunOptions& options) {
    auto result = decode::run_logits(model, ids, options);
    EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
    return result.ok() ? std::move(result).value() : decode::LogitsRun{};
  }
  decode::LogitsRun run(model::Model& model, const std::string& prompt,
                        const decode::LogitsRunOptions& options) {
    return run(model, expected_.ids(prompt + ".ids"), options);
  }
  decode::LogitsRun run(const std::string& prompt, const decode::LogitsRunOptions& options) {
    return run(*loaded_.model, prompt, options);
  }
  std::vector<std::string> prompts() const {
    std::vector<std::string> names;
    for (const char* name : {"one", "seven", "mid", "long_eos", "rep"}) {
      if (expected_.has(std::string(name) + ".ids")) names.emplace_back(name);
    }
    return names;
  }
  static bool emulated() { return GetParam().backend == "emulated"; }
  static bool on_gpu() { return emulated() || GetParam().backend == "cuda"; }
  /// GPUs multiply in half precision where operations.md lets them. Inputs rounded to 16 bits, as the CPU has
  /// them by default, move logits by 1e-4, and by 1e-3 where they turn a choice that is nearly tied.
  static double tolerance() { return on_gpu() ? 2e-3 : GetParam().backend == "cpu" ? 1e-2 : 1e-4; }
  test::LoadedModel loaded_;
  test::Fixture expected_;
};

/// A GPU is asked for by SLUICE_TEST_CUDA in the environment (scripts/device-check).
std::vector<Case> cases() {
  std::vector<Case> all;
  for (const char* backend : {"scalar", "cpu_exact"}) {
    for (const char* folder : {"tiny", "tiny4"}) all.push_back({folder, backend});
  }
  all.push_back({"tiny4", "cpu"});
#if !defined( \
    __SANITIZE_THREAD__)  // on one thread there is nothing for it to see, and it takes twenty times as long
  all.push_back({"tiny4", "emulated"});
#endif
  if (std::getenv("SLUICE_TEST_CUDA") != nullptr) all.push_back({"tiny4", "cuda"});
  return all;
}

// Of rounded activations other experts or blocks may follow where the reference's choice is nearly tied:
// there the GPU takes the reference's, so that all rows compare.
TEST_P(Reference, LogitsOfEveryPromptInOnePass) {
  // Router logits and block scores here are of about 1, a sum of errors of 1e-3 moves their differences by
  // 3e-3.
  constexpr float kNearlyTied = 1e-2F;
  test::ChoiceRecorder recorder;
  std::unique_ptr<test::GuidedGpu> guided;
  std::unique_ptr<model::Model> recorded;
  std::unique_ptr<model::Model> followed;
  if (on_gpu()) {
    auto device = emulated() ? gpu::open_emulated_device(1) : gpu::open_cuda_device(0);
    ASSERT_TRUE(device.ok()) << device.error().message;
    guided = std::make_unique<test::GuidedGpu>(std::move(device).value(), kNearlyTied);
    recorded = test::load_model_on(recorder, kModels / GetParam().folder);
    followed = test::load_model_on(*guided, kModels / GetParam().folder);
    ASSERT_TRUE(recorded != nullptr && followed != nullptr);
  }
  ASSERT_EQ(prompts().size(), 5U);
  for (const auto& prompt : prompts()) {
    std::vector<float> logits;
    if (on_gpu()) {
      recorder.forget();
      run(*recorded, prompt, {});
      guided->follow(recorder.choices());
      logits = run(*followed, prompt, {}).logits;
    } else {
      logits = run(prompt, {}).logits;
    }
    const double error = test::relative_error(logits, expected_.floats(prompt + ".logits"));
    RecordProperty(prompt, std::to_string(error));
    EXPECT_LE(error, tolerance()) << prompt;
  }
  if (!on_gpu()) return;
  // Of some 1,800 choices.
  EXPECT_LE(guided->otherwise().size(), 10U);
  EXPECT_THAT(guided->otherwise(), testing::Each(testing::Lt(kNearlyTied)));
}

TEST_P(Reference, LogitsDoNotDependOnHowThePromptIsSplit) {
  struct Part {
    std::string prompt;
    std::size_t ids;  // the first so many; 0: all
    std::vector<std::int64_t> chunks, rows;
  };
  std::vector<Part> parts;
  if (emulated()) {
    // It takes a second for a few rows. Selection begins after 32 tokens and 9 blocks.
    parts = {{"seven", 0, {1, 3}, {1, 4, 8}}, {"rep", 67, {64, 65}, {}}, {"mid", 41, {}, {8}}};
  } else {
    for (const auto& prompt : prompts()) {
      // The reference backend is slow by design: one prompt of it says as much.
      if (GetParam().backend == "scalar" && prompt != "rep") continue;
      parts.push_back({prompt, 0, {1, 3, 64, 65}, {1, 4, 8}});
    }
  }
  for (const auto& [prompt, count, chunks, steps] : parts) {
    auto ids = expected_.ids(prompt + ".ids");
    if (count > 0) ids.resize(count);
    const bool mtp = ids.size() > 1;
    const auto whole = run(*loaded_.model, ids, {.wide = true, .mtp = mtp});
    const auto same = [&](const decode::LogitsRun& part, const std::string& how) {
      EXPECT_EQ(part.logits, whole.logits) << prompt << ' ' << how;
      EXPECT_EQ(part.wide, whole.wide) << prompt << ' ' << how;
      EXPECT_EQ(part.mtp_logits, whole.mtp_logits) << prompt << ' ' << how;
    };
    for (const std::int64_t chunk : chunks) {
      same(run(*loaded_.model, ids, {.chunk = chunk, .wide = true, .mtp = mtp}),
           "chunk " + std::to_string(chunk));
    }
    for (const std::int64_t rows : steps) {
      same(run(*loaded_.model, ids, {.rows = rows, .wide = true, .mtp = mtp}),
           "rows " + std::to_string(rows));
    }
  }
}

TEST_P(Reference, WideResidualAfterEveryLayer) {
  int compared = 0;
  for (const auto& prompt : prompts()) {
    if (!expected_.has(prompt + ".wide0")) continue;
    const auto result = run(prompt, {.wide = true});
    for (std::size_t layer = 0; layer < result.wide.size(); ++layer) {
      const auto gold = expected_.floats(prompt + ".wide" + std::to_string(layer));
      EXPECT_LE(test::relative_error(result.wide[layer], gold), tolerance()) << prompt << " layer " << layer;
      ++compared;
    }
  }
  // Only the BF16 fixture holds them.
  EXPECT_EQ(compared, GetParam().folder == "tiny" ? 10 : 0);
}

TEST_P(Reference, MtpLogitsAndDrafts) {
  for (const auto& prompt : prompts()) {
    if (prompt == "one" || (emulated() && prompt == "long_eos")) continue;
    EXPECT_LE(
        test::relative_error(run(prompt, {.mtp = true}).mtp_logits, expected_.floats(prompt + ".mtp_logits")),
        tolerance())
        << prompt;

    // Row T - 2 as a draft, and one row chained on it.
    const auto ids = expected_.ids(prompt + ".ids");
    auto state = loaded_.model->new_state(static_cast<std::int64_t>(ids.size()) + 8);
    ASSERT_TRUE(state.ok());
    const auto head = std::span(ids).first(ids.size() - 1);
    const model::Segment segment{state->get(), head};
    ASSERT_TRUE(loaded_.model->forward(std::span(&segment, 1), {}).ok());
    ASSERT_TRUE((*state)->commit(static_cast<std::int64_t>(head.size())).ok());
    std::vector<float> logits(static_cast<std::size_t>(loaded_.model->config().vocab));
    const auto sink = [&](std::int64_t, std::int64_t, model::Dev<const float> data) -> Result<void> {
      loaded_.backend->download(std::as_writable_bytes(std::span(logits)),
                                model::Dev(reinterpret_cast<const std::byte*>(data.address())));
      return {};
    };
    ASSERT_TRUE(loaded_.model->draft(**state, ids.back(), 0, sink).ok());
    const auto draft = decode::argmax(logits, logits.size());
    EXPECT_EQ(draft, expected_.ids(prompt + ".mtp_draft1").front()) << prompt;
    ASSERT_TRUE(loaded_.model->draft(**state, draft, 1, sink).ok());
    EXPECT_LE(test::relative_error(logits, expected_.floats(prompt + ".mtp_draft2_logits")), tolerance())
        << prompt;
  }
}

// The head's hidden norm over all streams at once is the reference's; each stream by itself is another head.
TEST_P(Reference, TheHiddenNormOfTheHeadCanBeTakenForEachStream) {
  const auto gold = expected_.floats("mid.mtp_logits");
  const auto whole = run("mid", {.mtp = true});
  loaded_.model->set_mtp_hidden_norm(model::MtpHiddenNorm::kPerStream);
  const auto other = run("mid", {.mtp = true});
  // The norm moves these logits by 1e-3, less than a GPU's rounding may.
  EXPECT_GT(test::relative_error(other.mtp_logits, whole.mtp_logits), 5e-4);
  EXPECT_GT(test::relative_error(other.mtp_logits, gold), test::relative_error(whole.mtp_logits, gold));
  EXPECT_LT(test::relative_error(other.mtp_logits, gold), 0.5);
  EXPECT_EQ(other.logits, whole.logits);
}

TEST_P(Reference, GreedyContinuationsTokenForToken) {
  for (const auto& prompt : prompts()) {
    if (emulated() && prompt != "one" && prompt != "mid") continue;  // 0.2 seconds a token
    const auto ids = expected_.ids(prompt + ".ids");
    auto session = decode::Session::create(*loaded_.model, 256);
    ASSERT_TRUE(session.ok());
    ASSERT_TRUE((*session)->prefill(ids).ok());
    decode::Sampler sampler({.temperature = 0});
    std::vector<std::int32_t> out;
    const auto result = decode::generate(**session, sampler, {.max_tokens = 24}, [&](std::int32_t token) {
      out.push_back(token);
      return true;
    });
    ASSERT_TRUE(result.ok());
    EXPECT_EQ(out, expected_.ids(prompt + ".greedy")) << prompt;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Reference, testing::ValuesIn(cases()),
                         [](const auto& tested) { return tested.param.folder + "_" + tested.param.backend; });

}  // namespace
}  // namespace sluice

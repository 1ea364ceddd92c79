// The evaluation against the reference library's figures for the stored 4-bit demo (eval.json, row q4).
#include "engine/eval.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "support/temp_folder.h"

namespace sluice::engine {
namespace {

TEST(Eval, FiguresOfTheReferenceForTheStoredModel) {
  const auto path = std::filesystem::path(SLUICE_TEST_DATA) / "demo/eval.json";
  auto suite = load_eval_suite(path);
  ASSERT_TRUE(suite.ok()) << suite.error().message;
#if defined(__SANITIZE_THREAD__)
  // Watched, all of it takes three quarters of an hour, and threads do nothing in it that a part does not
  // show: the figures are those of that part, near the whole's.
  suite->held_out.resize(24);
  suite->recall_top.resize(8);
  suite->recall_all.resize(8);
  constexpr double kApart = 0.15;
#else
  constexpr double kApart = 0;
#endif
  const auto reference = parse_json(read_text_file(path, 1 << 24).value(), "eval").value()["reference"]["q4"];
  const auto opened = ChatEngine::open(std::filesystem::path(SLUICE_MODELS) / "demo", {.mtp = true});
  ASSERT_TRUE(opened.ok());
  const auto result = evaluate(**opened, *suite);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result->windows, kApart == 0 ? 60 : 6);
  EXPECT_NEAR(result->perplexity_sparse, reference["ppl_sparse"].get<double>(), 0.002 + kApart);
  EXPECT_NEAR(result->perplexity_dense, reference["ppl_dense"].get<double>(), 0.002 + kApart);
  EXPECT_NEAR(result->recall_top, reference["recall_top"].get<double>(), 0.01 + kApart);
  EXPECT_NEAR(result->recall_all, reference["recall_all"].get<double>(), 0.01 + kApart);
  EXPECT_NEAR(result->mtp_agreement, reference["mtp_agreement"].get<double>(), 0.01 + kApart);
}

TEST(Eval, GoldenAnswersAndToolCallsOfTheStoredModel) {
  const auto data = std::filesystem::path(SLUICE_TEST_DATA) / "demo";
  EvalSuite suite;
  ASSERT_TRUE(add_goldens(data / "golden.json", suite).ok());
  ASSERT_TRUE(add_eval_suite(data / "tools.json", suite).ok());
  ASSERT_EQ(suite.tool_calls.size(), 24U);
  suite.tool_calls.resize(2);
  suite.tool_calls.push_back(
      {"Look up ship.", {"define_word", {{"word", "boat"}}}});  // not what it should say
  const auto opened =
      ChatEngine::open(std::filesystem::path(SLUICE_MODELS) / "demo", {.mtp = false, .pack = false});
  ASSERT_TRUE(opened.ok());
  const auto result = evaluate(**opened, suite);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result->goldens, 16);
  EXPECT_EQ(result->goldens_same, 16);
  EXPECT_EQ(result->tool_calls, 4);  // one is a golden answer
  EXPECT_EQ(result->tool_calls_right + static_cast<std::int64_t>(result->different.size()), 4);
  EXPECT_EQ(result->tool_calls_broken, 0);
  EXPECT_THAT(result->different, testing::Contains("Look up ship."));
}

TEST(Eval, AModelDoesNotDivergeFromItself) {
  EvalSuite suite;
  suite.held_out.emplace_back(512, 7);
  for (std::size_t i = 0; i < 512; ++i) suite.held_out[0][i] = static_cast<std::int32_t>(300 + i * i % 997);
  const auto opened =
      ChatEngine::open(std::filesystem::path(SLUICE_MODELS) / "demo", {.mtp = false, .pack = false});
  ASSERT_TRUE(opened.ok());
  EvalResult result;
  ASSERT_TRUE(compare(**opened, **opened, suite, result).ok());
  EXPECT_EQ(result.compared, 1);
  EXPECT_NEAR(result.divergence, 0, 1e-9);
}

TEST(Eval, BrokenSuitesAreErrors) {
  const test::TempFolder folder;
  const auto load = [&](const std::string& text) {
    std::ofstream(folder / "suite.json") << text;
    return load_eval_suite(folder / "suite.json");
  };
  EXPECT_TRUE(load("{}").ok());
  EXPECT_FALSE(load("[]").ok());
  EXPECT_FALSE(load(R"({"held_out": 3})").ok());
  EXPECT_FALSE(load(R"({"held_out": [[1, "x"]]})").ok());
  EXPECT_FALSE(load(R"({"recall_top": [{"word": "a"}]})").ok());
  EXPECT_FALSE(load("nonsense").ok());
  EXPECT_FALSE(load(R"({"tools": 1})").ok());
  EXPECT_FALSE(load(R"({"tool_calls": [{"ask": "a", "name": "f", "arguments": {"n": 1}}]})").ok());
  EXPECT_FALSE(load(R"({"tool_calls": [{"ask": "a", "name": "f"}]})").ok());
  EvalSuite suite;
  EXPECT_FALSE(add_goldens(folder / "suite.json", suite).ok());
  std::ofstream(folder / "golden.json") << R"([{"name": "a", "prompt_ids": [1]}])";
  EXPECT_FALSE(add_goldens(folder / "golden.json", suite).ok());
}

}  // namespace
}  // namespace sluice::engine

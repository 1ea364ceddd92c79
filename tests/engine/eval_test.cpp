// The evaluation against the reference library's figures for the stored 4-bit demo (eval.json, row q4).
#include "engine/eval.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "support/temp_folder.h"

namespace sluice::engine {
namespace {

TEST(Eval, FiguresOfTheReferenceForTheStoredModel) {
  const auto path = std::filesystem::path(SLUICE_TEST_DATA) / "demo/eval.json";
  const auto suite = load_eval_suite(path);
  ASSERT_TRUE(suite.ok()) << suite.error().message;
  const auto reference = parse_json(read_text_file(path, 1 << 24).value(), "eval").value()["reference"]["q4"];
  const auto opened = ChatEngine::open(std::filesystem::path(SLUICE_MODELS) / "demo", {.mtp = true});
  ASSERT_TRUE(opened.ok());
  const auto result = evaluate(**opened, *suite);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(result->windows, 60);
  EXPECT_NEAR(result->perplexity_sparse, reference["ppl_sparse"].get<double>(), 0.002);
  EXPECT_NEAR(result->perplexity_dense, reference["ppl_dense"].get<double>(), 0.002);
  EXPECT_NEAR(result->recall_top, reference["recall_top"].get<double>(), 0.01);
  EXPECT_NEAR(result->recall_all, reference["recall_all"].get<double>(), 0.01);
  EXPECT_NEAR(result->mtp_agreement, reference["mtp_agreement"].get<double>(), 0.01);
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
}

}  // namespace
}  // namespace sluice::engine

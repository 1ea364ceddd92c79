#include "decode/session.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "decode/generate.h"
#include "decode/logits_run.h"
#include "support/loaded_model.h"

namespace sluice::decode {
namespace {

const std::filesystem::path kTiny = std::filesystem::path(SLUICE_TEST_DATA) / "model" / "tiny4";

class SessionTest : public testing::Test {
 protected:
  void SetUp() override {
    loaded_ = test::load_model(kTiny, "cpu", {.max_rows = 32});
    ASSERT_NE(loaded_.model, nullptr);
    for (int i = 0; i < 100; ++i) ids_.push_back((i * 37 + 11) % 512);
  }
  std::unique_ptr<Session> session(std::int64_t context) {
    return std::move(Session::create(*loaded_.model, context)).value();
  }
  test::LoadedModel loaded_;
  std::vector<std::int32_t> ids_;
};

TEST_F(SessionTest, DecodingAfterAPrefillGivesTheRowsOfALongerPrefill) {
  const auto s = session(200);
  const auto all = run_logits(*loaded_.model, ids_, {}).value();
  ASSERT_TRUE(s->prefill(std::span(ids_).first(61)).ok());
  for (std::size_t t = 61; t < 100; ++t) {
    const auto row = std::span(all.logits).subspan((t - 1) * 512, 512);
    ASSERT_TRUE(std::equal(row.begin(), row.end(), s->logits().begin())) << t;
    ASSERT_TRUE(s->step(ids_[t]).ok());
  }
}

TEST_F(SessionTest, AnEmptyPromptAndOneLongerThanTheContextAreErrorsWithNumbers) {
  const auto s = session(50);
  EXPECT_FALSE(s->prefill({}).ok());
  const auto result = s->prefill(std::span(ids_).first(51));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kLimit);
  EXPECT_NE(result.error().message.find("51"), std::string::npos);
  EXPECT_NE(result.error().message.find("50"), std::string::npos);
  EXPECT_EQ(s->length(), 0);
  EXPECT_TRUE(s->prefill(std::span(ids_).first(50)).ok());
}

TEST_F(SessionTest, GenerationEndsAtTheContextWithLength) {
  const auto s = session(40);
  ASSERT_TRUE(s->prefill(std::span(ids_).first(30)).ok());
  Sampler sampler({.temperature = 0});
  const auto result = generate(*s, sampler, {.max_tokens = 1000}, {});
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->reason, StopReason::kLength);
  EXPECT_EQ(result->tokens, 11);  // ten fill the context, one more follows from the last
}

TEST_F(SessionTest, APrefillCanBeCancelledAtAChunk) {
  const auto s = session(200);
  int calls = 0;
  const auto result =
      s->prefill(ids_, 10, [&](std::int64_t done, std::int64_t) { return ++calls, done < 30; });
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kCancelled);
  EXPECT_EQ(calls, 3);
}

}  // namespace
}  // namespace sluice::decode

// The demo model through the public interface: the reference library's greedy answers, and what text users
// see.
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/json.h"
#include "decode/generate.h"
#include "engine/chat_engine.h"

namespace sluice {
namespace {

const std::filesystem::path kDemo = std::filesystem::path(SLUICE_MODELS) / "demo";

class Demo : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    auto opened = engine::ChatEngine::open(kDemo, {});
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    engine_ = std::move(opened).value();
  }
  static void TearDownTestSuite() { engine_.reset(); }
  static std::string ask(const std::string& text, bool thinking = false) {
    const Json messages = Json::array({{{"role", "user"}, {"content", text}}});
    return engine_->render(messages, Json{{"add_generation_prompt", true}, {"enable_thinking", thinking}})
        .value();
  }
  static Generation generate(GenerateRequest request) {
    auto session = std::move(engine_->new_session()).value();
    auto result = session->generate(request);
    EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
    return result.ok() ? std::move(result).value() : Generation{};
  }
  static std::unique_ptr<engine::ChatEngine> engine_;
};

std::unique_ptr<engine::ChatEngine> Demo::engine_;

Json goldens() {
  const auto path = std::filesystem::path(SLUICE_TEST_DATA) / "demo/golden.json";
  return parse_json(read_text_file(path, 1 << 24).value(), "golden").value();
}

/// As many tokens as the reference's answer to this golden prompt has.
std::vector<std::int32_t> greedy_answer(engine::ChatEngine& engine, const Json& item) {
  const auto session = std::move(decode::Session::create(engine.model(), 1024)).value();
  EXPECT_TRUE(session->prefill(item["prompt_ids"].get<std::vector<std::int32_t>>()).ok());
  decode::Sampler sampler({.temperature = 0});
  std::vector<std::int32_t> out;
  decode::GenerateOptions options;
  options.max_tokens = static_cast<std::int64_t>(item["output_ids"].size());
  EXPECT_TRUE(decode::generate(*session, sampler, options, [&](std::int32_t token) {
                out.push_back(token);
                return true;
              }).ok());
  return out;
}

TEST_F(Demo, GreedyAnswersOfTheReferenceTokenForToken) {
  const Json golden = goldens();
  ASSERT_EQ(golden.size(), 16U);
  for (const Json& item : golden) {
    EXPECT_EQ(engine_->encode(item["prompt"].get<std::string>()).value(),
              item["prompt_ids"].get<std::vector<std::int32_t>>())
        << item["name"];
    EXPECT_EQ(greedy_answer(*engine_, item), item["output_ids"].get<std::vector<std::int32_t>>())
        << item["name"];
  }
}

// The shortest three; scripts/device-check --emulated asks for all.
TEST(DemoOnTheEmulatedDevice, ShortAnswersOfTheReferenceTokenForToken) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "on one thread there is nothing for the thread sanitizer to see";
#endif
  const auto engine =
      std::move(engine::ChatEngine::open(kDemo, {.backend = "emulated", .threads = 1})).value();
  int answers = 0;
  for (const Json& item : goldens()) {
    if (item["output_ids"].size() > 13 || item["min_margin"].get<double>() < 0.1) continue;
    EXPECT_EQ(greedy_answer(*engine, item), item["output_ids"].get<std::vector<std::int32_t>>())
        << item["name"];
    ++answers;
  }
  EXPECT_EQ(answers, 3);
}

TEST(DemoOnTheEmulatedDevice, ADeviceThatFailsIsAnErrorThatSaysWhy) {
  const auto engine =
      std::move(engine::ChatEngine::open(kDemo, {.backend = "emulated", .threads = 1})).value();
  const auto session = std::move(engine->new_session()).value();
  std::byte there{};
  engine->model().backend().upload(model::Dev<std::byte>(&there), std::span(&there, 1));  // nobody's address
  const auto answer = session->generate({.prompt = "Define glacier."});
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().code, ErrorCode::kDevice);
  EXPECT_NE(answer.error().message.find("emulated device: upload of 1 bytes out of bounds"),
            std::string::npos)
      << answer.error().message;
}

TEST_F(Demo, AnswersAndStops) {
  const auto g = generate({.prompt = ask("Define glacier."), .sampling = {.temperature = 0}});
  EXPECT_EQ(g.answer, "Glacier (noun): a slowly moving mass of ice.");
  EXPECT_EQ(g.reasoning, "");
  EXPECT_EQ(g.stop_reason, "stop");
}

TEST_F(Demo, ReasoningIsKeptApartFromTheAnswer) {
  std::string reasoning;
  std::string answer;
  GenerateRequest request{.prompt = ask("What is a mountain?", true), .sampling = {.temperature = 0}};
  request.on_text = [&](TextKind kind, std::string_view text) {
    (kind == TextKind::kReasoning ? reasoning : answer) += text;
    return true;
  };
  const auto g = generate(request);
  EXPECT_NE(g.reasoning.find("mountain"), std::string::npos);
  EXPECT_EQ(g.answer.rfind("Mountain (noun):", 0), 0U) << g.answer;
  EXPECT_EQ(g.answer.find("think>"), std::string::npos);
  EXPECT_EQ(reasoning, g.reasoning);
  EXPECT_EQ(answer, g.answer);
}

TEST_F(Demo, AStopStringEndsTheAnswerBeforeIt) {
  const auto g =
      generate({.prompt = ask("Define glacier."), .sampling = {.temperature = 0}, .stop = {"ving ma"}});
  EXPECT_EQ(g.answer, "Glacier (noun): a slowly mo");
  EXPECT_EQ(g.stop_reason, "stop");
}

TEST_F(Demo, MaxTokensCutsWithLength) {
  const auto g =
      generate({.prompt = ask("Define glacier."), .sampling = {.temperature = 0}, .max_tokens = 5});
  EXPECT_EQ(g.tokens.size(), 5U);
  EXPECT_EQ(g.stop_reason, "length");
}

TEST_F(Demo, SeedsRepeatAndTheirAbsenceDiffers) {
  const auto text = [&](std::optional<std::uint64_t> seed) {
    return generate({.prompt = ask("Define song."),
                     .sampling = {.temperature = 2.5, .top_k = 0, .seed = seed},
                     .max_tokens = 40})
        .tokens;
  };
  EXPECT_EQ(text(7), text(7));
  EXPECT_NE(text(std::nullopt), text(std::nullopt));
}

TEST_F(Demo, AConversationReusesWhatTheSessionHasSeenAndSaysTheSame) {
  const auto session = std::move(engine_->new_session()).value();
  Json messages = Json::array({{{"role", "user"}, {"content", "Define glacier."}}});
  const Json options{{"add_generation_prompt", true}, {"enable_thinking", false}};
  const auto first = session->generate(
      {.prompt = engine_->render(messages, options).value(), .sampling = {.temperature = 0}});
  ASSERT_TRUE(first.ok());
  messages.push_back({{"role", "assistant"}, {"content", first->answer}});
  messages.push_back({{"role", "user"}, {"content", "Define ship."}});
  const GenerateRequest second{.prompt = engine_->render(messages, options).value(),
                               .sampling = {.temperature = 0}};
  const auto continued = session->generate(second);
  ASSERT_TRUE(continued.ok());
  EXPECT_GT(continued->reused_tokens, first->prompt_tokens);
  const auto fresh = generate(second);
  EXPECT_EQ(fresh.reused_tokens, 0);
  EXPECT_EQ(continued->tokens, fresh.tokens);
}

TEST_F(Demo, BadRequestsAreErrorsAndTheSessionGoesOn) {
  const auto session = std::move(engine_->new_session()).value();
  EXPECT_FALSE(session->generate({.prompt = ""}).ok());
  EXPECT_FALSE(session->generate({.prompt = "x", .sampling = {.temperature = -1}}).ok());
  std::string novel;
  for (int i = 0; i < 9000; ++i) novel += "x ";
  const auto longer = session->generate({.prompt = novel});
  ASSERT_FALSE(longer.ok());
  EXPECT_EQ(longer.error().code, ErrorCode::kLimit);
  EXPECT_NE(longer.error().message.find("context holds 8192"), std::string::npos);
  EXPECT_EQ(session->generate({.prompt = ask("Define glacier."), .sampling = {.temperature = 0}})->answer,
            "Glacier (noun): a slowly moving mass of ice.");
}

TEST_F(Demo, AnInterruptedAnswerLeavesAUsableSession) {
  const auto session = std::move(engine_->new_session()).value();
  GenerateRequest request{.prompt = ask("Define glacier."), .sampling = {.temperature = 0}};
  int pieces = 0;
  request.on_text = [&](TextKind, std::string_view) { return ++pieces < 3; };
  const auto cut = session->generate(request);
  ASSERT_TRUE(cut.ok());
  EXPECT_EQ(cut->stop_reason, "cancelled");
  request.on_text = nullptr;
  EXPECT_EQ(session->generate(request)->answer, "Glacier (noun): a slowly moving mass of ice.");
}

}  // namespace
}  // namespace sluice

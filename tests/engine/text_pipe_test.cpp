#include "engine/text_pipe.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace sluice::engine {
namespace {

class TextPipeTest : public testing::Test {
 protected:
  void SetUp() override {
    tokenizer_ = std::move(text::Tokenizer::load(std::filesystem::path(SLUICE_MODELS) / "demo")).value();
    request_.on_text = [this](TextKind kind, std::string_view text) {
      pieces_.emplace_back(text);
      (kind == TextKind::kReasoning ? reasoning_ : answer_) += text;
      return true;
    };
  }
  // Feeds the tokens of `text`, the last `cut` of them left off.
  void feed(const std::string& text, std::size_t cut = 0) {
    const auto ids = tokenizer_->encode(text).value();
    TextPipe pipe(*tokenizer_, request_, out_);
    for (std::size_t i = 0; i + cut < ids.size(); ++i) {
      if (!pipe.push(ids[i])) break;
    }
    pipe.finish();
  }
  std::unique_ptr<text::Tokenizer> tokenizer_;
  GenerateRequest request_;
  Generation out_;
  std::string reasoning_, answer_;
  std::vector<std::string> pieces_;
};

TEST_F(TextPipeTest, AnEmojiOfSeveralTokensComesWholeAndACutOneNotAtAll) {
  feed("ice 👍");
  EXPECT_EQ(answer_, "ice 👍");
  for (const auto& piece : pieces_) EXPECT_EQ(piece.find("\xef\xbf\xbd"), std::string::npos);
  for (std::size_t cut = 1; cut <= 3; ++cut) {
    answer_.clear();
    feed("ice 👍", cut);
    EXPECT_EQ(answer_, "ice ") << cut;
  }
}

TEST_F(TextPipeTest, AStopStringSpreadOverTokensEndsTheAnswerAndIsLookedForInItAlone) {
  request_.prompt = "<think>\n";
  request_.stop = {"END\n\n"};
  feed("first END\n\n then</think>\n\nthe answer END\n\nmore");
  EXPECT_EQ(reasoning_, "first END\n\n then");
  EXPECT_EQ(answer_, "the answer ");
}

TEST_F(TextPipeTest, AStopStringThatNeverComesLosesNothing) {
  request_.stop = {"END\n\n"};
  feed("the END\n");
  EXPECT_EQ(answer_, "the END\n");
}

TEST_F(TextPipeTest, SpecialTokensAreNotText) {
  feed("ice<|im_end|>");
  EXPECT_EQ(answer_, "ice");
}

}  // namespace
}  // namespace sluice::engine

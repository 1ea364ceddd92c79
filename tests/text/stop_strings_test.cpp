#include "text/stop_strings.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "text/reasoning.h"

namespace sluice::text {
namespace {

struct Outcome {
  std::string text;
  bool stopped = false;
  bool operator==(const Outcome&) const = default;
};

Outcome run(const std::vector<std::string>& stops, std::string_view text, std::size_t size) {
  StopStrings filter(stops);
  Outcome out;
  for (std::size_t i = 0; i < text.size(); i += size) out.text += filter.push(text.substr(i, size));
  out.text += filter.finish();
  out.stopped = filter.stopped();
  return out;
}

// What the class promises, by looking at all the text at once.
Outcome expected(const std::vector<std::string>& stops, const std::string& text) {
  for (std::size_t end = 1; end <= text.size(); ++end) {
    std::size_t longest = 0;
    for (const std::string& stop : stops) {
      if (std::string_view(text).substr(0, end).ends_with(stop)) longest = std::max(longest, stop.size());
    }
    if (longest > 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

TEST(StopStrings, FindsAStopSplitOverThreePieces) {
  StopStrings filter({"END\n\n"});
  EXPECT_EQ(filter.push("text EN"), "text ");
  EXPECT_EQ(filter.push("D\n"), "");
  EXPECT_FALSE(filter.stopped());
  EXPECT_EQ(filter.push("\nmore"), "");
  EXPECT_TRUE(filter.stopped());
  EXPECT_EQ(filter.matched(), "END\n\n");
  EXPECT_EQ(filter.push("and more"), "");
  EXPECT_EQ(filter.finish(), "");
}

TEST(StopStrings, ReleasesAPrefixThatTurnsOutHarmless) {
  StopStrings filter({"STOP"});
  EXPECT_EQ(filter.push("a STO"), "a ");
  EXPECT_EQ(filter.push("RM"), "STORM");
  EXPECT_FALSE(filter.stopped());
}

TEST(StopStrings, FlushesTheHeldTailOnceAtTheEnd) {
  StopStrings filter({"\n\nUser:"});
  EXPECT_EQ(filter.push("bye\n\nUs"), "bye");
  EXPECT_EQ(filter.finish(), "\n\nUs");
  EXPECT_EQ(filter.finish(), "");
}

TEST(StopStrings, KeepsTheLongestPossiblePrefixOnSelfOverlap) {
  EXPECT_EQ(run({"aab"}, "aaaaab!", 1), (Outcome{"aaa", true}));
  EXPECT_EQ(run({"abab"}, "abaabab", 1), (Outcome{"aba", true}));
}

TEST(StopStrings, WithoutStopsNothingIsHeld) {
  StopStrings filter({"", ""});
  EXPECT_EQ(filter.push("text"), "text");
  EXPECT_FALSE(filter.stopped());
  EXPECT_EQ(filter.matched(), std::nullopt);
}

TEST(StopStrings, OfTwoStopsEndingTogetherTheLongestIsCut) {
  EXPECT_EQ(run({"c", "abc"}, "xabcd", 100), (Outcome{"x", true}));
  EXPECT_EQ(run({"abcd", "bc"}, "xabcd", 100), (Outcome{"xa", true}));
}

TEST(StopStrings, EverySplitGivesWhatAWholeSearchGives) {
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    const auto letters = [&](std::size_t most) {
      std::string s(1 + random() % most, 'a');
      for (char& c : s) c = static_cast<char>('a' + random() % 3);
      return s;
    };
    std::vector<std::string> stops;
    for (std::size_t n = 1 + random() % 3; n > 0; --n) stops.push_back(letters(4) + "b");
    const std::string text = letters(24);
    const Outcome want = expected(stops, text);
    for (const std::size_t size : {std::size_t{1}, std::size_t{2}, std::size_t{3}, text.size()}) {
      ASSERT_EQ(run(stops, text, size), want) << text << " " << stops[0];
    }
  }
}

TEST(StopStrings, BehindTheSplitterAStopInTheReasoningDoesNotEndTheAnswer) {
  // Tag and stop share their first bytes, and the stop also occurs while thinking.
  const std::string text = "let me END\n\n think\n</think>\n\nanswer END\n\nrest";
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    ReasoningSplitter splitter(true);
    StopStrings filter({"END\n\n", "</thin"});
    std::string reasoning;
    std::string answer;
    for (const std::string& piece : {text.substr(0, cut), text.substr(cut)}) {
      const SplitText parts = splitter.push(piece);
      reasoning += parts.reasoning;
      answer += filter.push(parts.answer);
    }
    answer += filter.finish();
    EXPECT_EQ(reasoning, "let me END\n\n think");
    EXPECT_EQ(answer, "answer ");
    EXPECT_EQ(filter.matched(), "END\n\n");
  }
}

}  // namespace
}  // namespace sluice::text

#include "text/reasoning.h"

#include <gtest/gtest.h>

namespace sluice::text {
namespace {

SplitText run(bool inside, std::string_view text, std::size_t size) {
  ReasoningSplitter splitter(inside);
  SplitText all;
  const auto add = [&all](const SplitText& parts) {
    all.reasoning += parts.reasoning;
    all.answer += parts.answer;
  };
  for (std::size_t i = 0; i < text.size(); i += size) add(splitter.push(text.substr(i, size)));
  add(splitter.finish());
  return all;
}

TEST(Reasoning, APromptWithAnOpenThinkStartsInside) {
  EXPECT_TRUE(ends_in_open_think("<|im_start|>assistant\n<think>\n"));
  EXPECT_TRUE(ends_in_open_think("<think>"));
  EXPECT_FALSE(ends_in_open_think("<|im_start|>assistant\n<think>\n\n</think>\n\n"));
  EXPECT_FALSE(ends_in_open_think("<think>\nwell"));
  EXPECT_FALSE(ends_in_open_think(""));
  EXPECT_FALSE(ends_in_open_think("\n\n"));
}

TEST(Reasoning, EverySplitGivesTheSameParts) {
  struct Case {
    bool inside;
    std::string text;
    std::string reasoning;
    std::string answer;
  };
  const Case cases[] = {
      {true, "because\n</think>\n\nyes", "because", "yes"},
      {true, "\n\nlines\n\ninside\n\n\n</think>yes\n", "\n\nlines\n\ninside", "yes\n"},
      {true, "</think>\n\nanswer", "", "answer"},
      {true, "\n\n</think>", "", ""},
      {true, "a </thin b < / </think", "a </thin b < / </think", ""},
      {true, "never closed\n\n", "never closed\n\n", ""},
      {true, "a<</think>b</think>c", "a<", "b</think>c"},
      {true, "a </th</think>b", "a </th", "b"},
      {true, "a\n\n</thinx</think>\n \nb", "a\n\n</thinx", " \nb"},
      {true, "", "", ""},
      {false, "\n\nplain </think> text\n", "", "\n\nplain </think> text\n"},
  };
  for (const Case& c : cases) {
    for (std::size_t size = 1; size <= c.text.size() + 1; ++size) {
      const SplitText parts = run(c.inside, c.text, size);
      EXPECT_EQ(parts.reasoning, c.reasoning) << c.text << " by " << size;
      EXPECT_EQ(parts.answer, c.answer) << c.text << " by " << size;
    }
    for (std::size_t cut = 0; cut <= c.text.size(); ++cut) {
      ReasoningSplitter splitter(c.inside);
      const SplitText one = splitter.push(std::string_view(c.text).substr(0, cut));
      const SplitText two = splitter.push(std::string_view(c.text).substr(cut));
      const SplitText end = splitter.finish();
      EXPECT_EQ(one.reasoning + two.reasoning + end.reasoning, c.reasoning) << c.text << " at " << cut;
      EXPECT_EQ(one.answer + two.answer + end.answer, c.answer) << c.text << " at " << cut;
    }
  }
}

TEST(Reasoning, ReportsTextAsSoonAsItIsKnown) {
  ReasoningSplitter splitter(true);
  EXPECT_EQ(splitter.push("one\n").reasoning, "one");
  EXPECT_EQ(splitter.push("two <").reasoning, "\ntwo ");
  EXPECT_EQ(splitter.push("b").reasoning, "<b");
  EXPECT_TRUE(splitter.inside());
  EXPECT_EQ(splitter.push("</think>").reasoning, "");
  EXPECT_FALSE(splitter.inside());
  EXPECT_EQ(splitter.push("\n").answer, "");
  EXPECT_EQ(splitter.push("\nyes").answer, "yes");
  EXPECT_EQ(splitter.push("\n\n").answer, "\n\n");
}

}  // namespace
}  // namespace sluice::text

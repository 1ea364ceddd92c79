// Tool calls in the form of the chat template, and what models make of it when they are too coarse.
#include "text/tool_calls.h"

#include <gtest/gtest.h>

namespace sluice::text {
namespace {

const std::string kGood =
    "<tool_call>\n<function=define_word>\n<parameter=word>\nglacier\n</parameter>\n</function>\n</tool_call>";

TEST(ToolCalls, OneCall) {
  const auto answer = parse_tool_calls(kGood);
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->text, "");
  ASSERT_EQ(answer->calls.size(), 1U);
  EXPECT_EQ(answer->calls[0], (ToolCall{"define_word", {{"word", "glacier"}}}));
}

TEST(ToolCalls, TextAloneIsNoCall) {
  for (const std::string text : {"", "Glacier (noun): ice.", "a < b", "<tool>"}) {
    const auto answer = parse_tool_calls(text);
    ASSERT_TRUE(answer.ok()) << answer.error().message;
    EXPECT_EQ(answer->text, text);
    EXPECT_TRUE(answer->calls.empty());
  }
}

TEST(ToolCalls, TextBeforeSeveralCallsAndValuesOfManyLines) {
  const auto answer = parse_tool_calls("Let me look.\n\n" + kGood +
                                       "\n<tool_call><function=f></function></tool_call>\n<tool_call>\n"
                                       "<function=g>\n<parameter=a>\n\n1\n2 \n\n</parameter>"
                                       "<parameter=b></parameter></function></tool_call>\n");
  ASSERT_TRUE(answer.ok()) << answer.error().message;
  EXPECT_EQ(answer->text, "Let me look.");
  ASSERT_EQ(answer->calls.size(), 3U);
  EXPECT_EQ(answer->calls[1], (ToolCall{"f", {}}));
  EXPECT_EQ(answer->calls[2], (ToolCall{"g", {{"a", "\n1\n2 \n"}, {"b", ""}}}));
}

TEST(ToolCalls, EveryCutIsAnError) {
  for (std::size_t n = std::string("<tool_call>").size(); n < kGood.size(); ++n) {
    EXPECT_FALSE(parse_tool_calls(kGood.substr(0, n)).ok()) << n;
  }
}

TEST(ToolCalls, BentTagsAreErrorsThatSayWhatWasNeeded) {
  const auto error_of = [](std::string from, const std::string& to) {
    std::string text = kGood;
    text.replace(text.find(from), from.size(), to);
    const auto answer = parse_tool_calls(text);
    EXPECT_FALSE(answer.ok()) << text;
    return answer.ok() ? "" : answer.error().message;
  };
  EXPECT_EQ(error_of("<function=", "<function>"),
            "tool call: \"<function>define_word>\n<parameter=word>\n\" found, <function= needed");
  EXPECT_NE(error_of("=define_word", "=\\define_word\\").find("a name and >"), std::string::npos);
  EXPECT_NE(error_of("=define_word", "=").find("a name and >"), std::string::npos);
  EXPECT_NE(error_of("</function>", "</functon>").find("<parameter= needed"), std::string::npos);
  EXPECT_NE(error_of("</function>", "<parameter=word></parameter></function>").find("twice"),
            std::string::npos);
  EXPECT_NE(error_of("</tool_call>", "</tool_call> and so on").find("<tool_call> needed"), std::string::npos);
}

}  // namespace
}  // namespace sluice::text

#include "text/chat_template.h"

#include <gtest/gtest.h>

#include "fixtures.h"

namespace sluice::text {
namespace {

const ChatTemplate& demo() {
  static const ChatTemplate kTemplate = [] {
    auto loaded = ChatTemplate::load(SLUICE_MODELS "/demo");
    if (!loaded.ok()) throw std::runtime_error(loaded.error().message);
    return std::move(*loaded);
  }();
  return kTemplate;
}

TEST(ChatGolden, RendersAndEncodesAsTheReferenceDoes) {
  const Json cases = read_json(SLUICE_TEST_DATA "/text/chat_golden.json");
  ASSERT_GT(cases.size(), 15U);
  for (const Json& one : cases) {
    SCOPED_TRACE(one["messages"].dump());
    const auto text = demo().render(one["messages"], one["options"]);
    if (one.contains("error")) {
      ASSERT_FALSE(text.ok());
      EXPECT_EQ(text.error().message, one["error"].get<std::string>());
      continue;
    }
    ASSERT_TRUE(text.ok()) << text.error().message;
    EXPECT_EQ(*text, one["text"].get<std::string>());
    EXPECT_EQ(encode_or_throw(demo_tokenizer(), *text), one["ids"].get<std::vector<std::int32_t>>());
  }
}

}  // namespace
}  // namespace sluice::text

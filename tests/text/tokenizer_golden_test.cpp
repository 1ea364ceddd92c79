#include <gtest/gtest.h>

#include "fixtures.h"

namespace sluice::text {
namespace {

TEST(TokenizerGolden, EncodesAndDecodesAsTheReferenceDoes) {
  const Json cases = read_json(SLUICE_TEST_DATA "/text/tokenizer_golden.json");
  ASSERT_GT(cases.size(), 40U);
  for (const Json& one : cases) {
    const auto text = one["text"].get<std::string>();
    SCOPED_TRACE(text);
    const auto expected = one["ids"].get<std::vector<std::int32_t>>();
    EXPECT_EQ(encode_or_throw(demo_tokenizer(), text), expected);
    EXPECT_EQ(demo_tokenizer().decode(expected), one["decoded"].get<std::string>());
  }
}

TEST(TokenizerGolden, EncodesRenderedChatsAsTheReferenceDoes) {
  for (const Json& one : read_json(SLUICE_TEST_DATA "/text/chat_golden.json")) {
    if (!one.contains("ids")) continue;
    EXPECT_EQ(encode_or_throw(demo_tokenizer(), one["text"].get<std::string>()),
              one["ids"].get<std::vector<std::int32_t>>());
  }
}

}  // namespace
}  // namespace sluice::text

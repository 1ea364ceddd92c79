#include "decode/token_ids.h"

#include <gtest/gtest.h>

namespace sluice::decode {
namespace {

using Ids = std::vector<std::int32_t>;

TEST(TokenIds, AreReadAsListsAndAsJson) {
  EXPECT_EQ(parse_token_ids("1,2,3").value(), (Ids{1, 2, 3}));
  EXPECT_EQ(parse_token_ids(" 1 2\n3, 4 ").value(), (Ids{1, 2, 3, 4}));
  EXPECT_EQ(parse_token_ids("[0, 2147483647]").value(), (Ids{0, 2147483647}));
  EXPECT_EQ(parse_token_ids("").value(), Ids{});
  EXPECT_EQ(parse_token_ids("[]").value(), Ids{});
}

TEST(TokenIds, AnythingElseIsAnErrorThatQuotesIt) {
  for (const char* text :
       {"1,x", "-1", "1.5", "2147483648", "99999999999999999999", "0x10", "[1, \"2\"]", "[1.5]", "[-1]",
        "[2147483648]", "[18446744073709551615]", "[1e3]", "[[1]]", "{\"a\": 1}", "[1", "1;2"}) {
    const auto ids = parse_token_ids(text);
    EXPECT_FALSE(ids.ok()) << text;
  }
  EXPECT_NE(parse_token_ids("7,glacier,8").error().message.find("'glacier' at place 1"), std::string::npos);
}

TEST(TokenIds, AreCheckedAgainstTheVocabulary) {
  EXPECT_TRUE(check_token_ids({0, 511}, 512).ok());
  EXPECT_FALSE(check_token_ids({}, 512).ok());
  const auto result = check_token_ids({5, 512}, 512);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.error().message.find("token 512 at place 1: needed 0 to 511"), std::string::npos);
}

}  // namespace
}  // namespace sluice::decode

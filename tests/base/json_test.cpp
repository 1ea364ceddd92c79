#include "base/json.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(Json, KeepsTheOrderOfKeys) {
  EXPECT_EQ(dump_json(parse_json(R"({"z":1,"a":{"y":2,"b":3}})", "x").value()),
            R"({"z":1,"a":{"y":2,"b":3}})");
}

TEST(Json, ErrorsNameTheFileAndTheByte) {
  const auto bad = parse_json("{\"a\": ]", "config.json");
  ASSERT_FALSE(bad.ok());
  EXPECT_NE(bad.error().message.find("config.json"), std::string::npos);
  EXPECT_NE(bad.error().message.find("byte 7"), std::string::npos);
}

TEST(Json, DeepNestingIsRefusedNotFollowed) {
  EXPECT_EQ(parse_json(std::string(1000000, '['), "deep").error().code, ErrorCode::kLimit);
  EXPECT_TRUE(parse_json("\"" + std::string(1000, '[') + "\"", "string").ok());
}

TEST(Json, AnObjectOfVeryManyMembersIsRefusedAtOnce) {
  std::string text = "{";
  for (int i = 0; i < 200000; ++i) text += "\"" + std::to_string(i) + "\":1,";
  text += "\"end\":1}";
  EXPECT_EQ(parse_json(text, "wide").error().code, ErrorCode::kLimit);
}

TEST(Json, InvalidUtf8IsReplacedOnOutput) {
  EXPECT_EQ(dump_json(Json("a\xff")), "\"a\xef\xbf\xbd\"");
}

}  // namespace
}  // namespace sluice

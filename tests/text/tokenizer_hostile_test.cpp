#include <gtest/gtest.h>

#include <fstream>

#include "text/regex_split.h"
#include "text/tokenizer.h"
#include "tokenizer_json.h"

namespace sluice::text {
namespace {

Result<std::unique_ptr<Tokenizer>> parse(const Json& json) {
  return Tokenizer::parse(dump_json(json), "bad.json");
}

void expect_error(const Json& json, ErrorCode code, const std::string& part) {
  const auto parsed = parse(json);
  ASSERT_FALSE(parsed.ok()) << part;
  EXPECT_EQ(parsed.error().code, code) << parsed.error().message;
  EXPECT_NE(parsed.error().message.find(part), std::string::npos) << parsed.error().message;
  EXPECT_EQ(parsed.error().message.substr(0, 8), "bad.json");
}

Json with_vocab(const std::string& token, const Json& id) {
  Json json = small_tokenizer();
  json["model"]["vocab"][token] = id;
  return json;
}

TEST(HostileTokenizer, TheSmallOneIsFine) {
  EXPECT_TRUE(parse(small_tokenizer({{"a", "b"}})).ok());
}

TEST(HostileTokenizer, TextThatIsNotJsonIsAnError) {
  for (const char* text : {"", "{", "[1,", "\xff\xfe", "{\"model\": nan}"}) {
    EXPECT_FALSE(Tokenizer::parse(text, "x").ok()) << text;
  }
  EXPECT_FALSE(Tokenizer::parse(std::string(100'000, '['), "x").ok());
  std::string deep;
  for (int i = 0; i < 50'000; ++i) deep += "{\"a\":";
  EXPECT_EQ(Tokenizer::parse(deep, "x").error().code, ErrorCode::kLimit);
}

TEST(HostileTokenizer, EveryPartOfEveryWrongTypeIsAnErrorOrHarmless) {
  const Json base = small_tokenizer({{"a", "b"}});
  const Json odd[] = {nullptr,        true,          7,     -1, 1e300, "text", Json::array(),
                      Json::object(), {{"type", 3}}, {1, 2}};
  const char* paths[] = {
      "/normalizer",      "/pre_tokenizer", "/pre_tokenizer/type", "/pre_tokenizer/use_regex",
      "/decoder",         "/decoder/type",  "/added_tokens",       "/model",
      "/model/type",      "/model/vocab",   "/model/merges",       "/model/merges/0",
      "/model/merges/0/0"};
  for (const char* path : paths) {
    for (const Json& value : odd) {
      Json json = base;
      json[Json::json_pointer(path)] = value;
      static_cast<void>(parse(json));
      Json added = base;
      added["added_tokens"] = Json::array({value});
      static_cast<void>(parse(added));
      for (const char* key : {"id", "content", "special", "lstrip", "normalized"}) {
        Json token = added_token(300, "<x>");
        token[key] = value;
        added["added_tokens"] = Json::array({token});
        static_cast<void>(parse(added));
      }
    }
  }
  for (const Json& value : odd) EXPECT_FALSE(parse(value).ok());
}

TEST(HostileTokenizer, IdsOutOfRangeAreErrors) {
  for (const Json& id :
       {Json(-1), Json(1LL << 40), Json(~0ULL), Json(1.5), Json("3"), Json(nullptr), Json(3'000'000)}) {
    expect_error(with_vocab("zz", id), ErrorCode::kCorrupt, "id of token 'zz'");
  }
}

TEST(HostileTokenizer, TwoTokensWithOneIdAreAnError) {
  expect_error(with_vocab("zz", 65), ErrorCode::kCorrupt, "id 65 belongs to two tokens");
  Json json = small_tokenizer();
  json["added_tokens"] = {added_token(65, "<x>")};
  expect_error(json, ErrorCode::kCorrupt, "id 65 belongs to two tokens");
  json["added_tokens"] = {added_token(300, "<x>"), added_token(301, "<x>")};
  expect_error(json, ErrorCode::kCorrupt, "added token '<x>' twice");
  json["added_tokens"] = {added_token(300, "A")};
  expect_error(json, ErrorCode::kCorrupt, "token 'A' has id 65 in the vocabulary and 300 as added");
}

TEST(HostileTokenizer, CharactersOutsideTheAlphabetAreAnError) {
  expect_error(with_vocab("a b", 300), ErrorCode::kCorrupt, "byte-level alphabet");
  expect_error(with_vocab("\u4E16", 300), ErrorCode::kCorrupt, "byte-level alphabet");
}

TEST(HostileTokenizer, AMissingByteIsAnError) {
  Json json = small_tokenizer();
  json["model"]["vocab"].erase("A");
  expect_error(json, ErrorCode::kUnsupported, "no token for byte 0x41");
}

TEST(HostileTokenizer, MergesOfUnknownTokensAreErrors) {
  Json json = small_tokenizer();
  for (const Json& merge :
       {Json({"a", "b"}), Json({"a", "zz"}), Json("a b"), Json({" ", "b"}), Json({"", "b"})}) {
    json["model"]["merges"] = Json::array({merge});
    expect_error(json, ErrorCode::kCorrupt, "names a token not in the vocabulary");
  }
  for (const Json& merge :
       {Json({"a"}), Json({"a", "b", "c"}), Json("ab"), Json("a b c"), Json(3), Json(nullptr)}) {
    json["model"]["merges"] = Json::array({merge});
    expect_error(json, ErrorCode::kCorrupt, "neither a pair");
  }
}

TEST(HostileTokenizer, PartsNobodyImplementsAreRefusedByName) {
  Json json = small_tokenizer();
  json["model"]["type"] = "Unigram";
  expect_error(json, ErrorCode::kUnsupported, "Unigram");
  json = small_tokenizer();
  json["normalizer"] = {{"type", "Lowercase"}};
  expect_error(json, ErrorCode::kUnsupported, "Lowercase");
  json = small_tokenizer();
  json["pre_tokenizer"] = {{"type", "Metaspace"}};
  expect_error(json, ErrorCode::kUnsupported, "Metaspace");
  json["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", true}};
  expect_error(json, ErrorCode::kUnsupported, "add_prefix_space");
  json["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "Removed"}};
  expect_error(json, ErrorCode::kUnsupported, "Removed");
  json = small_tokenizer();
  json["model"]["end_of_word_suffix"] = "</w>";
  expect_error(json, ErrorCode::kUnsupported, "end_of_word_suffix");
  json = small_tokenizer();
  json["model"]["dropout"] = 0.1;
  expect_error(json, ErrorCode::kUnsupported, "dropout");
}

TEST(HostileTokenizer, BadPatternsAreErrors) {
  for (const char* pattern :
       {"(", "[a", "a{99999}", "(?<n", "\\", "(?1)", "\\C", "((((a{999}){999}){999}){9})"}) {
    EXPECT_FALSE(RegexSplit::compile(pattern, false, "x").ok()) << pattern;
  }
  EXPECT_FALSE(RegexSplit::compile("", false, "x").ok());
  EXPECT_FALSE(RegexSplit::compile(std::string(1 << 20, 'a'), false, "x").ok());
  EXPECT_FALSE(RegexSplit::compile("\xff", true, "x").ok());
}

TEST(HostileTokenizer, AMissingFileIsAnError) {
  EXPECT_FALSE(Tokenizer::load("/nonexistent/folder").ok());
}

TEST(RegexSplit, PatternsThatExplodeHitALimit) {
  const std::string text = std::string(200, 'a') + "c";
  for (const char* pattern : {"(a+)+b", "(a|aa)+b", "(a*)*b", "(?:a?){40}a{40}b"}) {
    const auto split = RegexSplit::compile(pattern, false, "x");
    ASSERT_TRUE(split.ok()) << pattern;
    std::vector<std::string_view> pieces;
    const auto done = split->split(text, pieces);
    if (!done.ok()) {
      EXPECT_EQ(done.error().code, ErrorCode::kLimit);
    }
  }
}

TEST(RegexSplit, WorkThatGrowsWithTheSquareHitsALimit) {
  // Each match looks ahead over all the text that is left.
  const auto split = RegexSplit::compile("a(?=a*c)|a(?!a*b)", false, "x");
  ASSERT_TRUE(split.ok());
  std::vector<std::string_view> pieces;
  const auto done = split->split(std::string(1 << 20, 'a'), pieces);
  ASSERT_FALSE(done.ok());
  EXPECT_EQ(done.error().code, ErrorCode::kLimit);
}

TEST(RegexSplit, PiecesJoinToTheText) {
  const std::string text = "one  two\u3000three\n\n4 \u00E9\u4E16";
  for (const char* pattern :
       {"\\s+", "", "x*", "\\b", "(?=t)", "[^\\s]", "\\S+", "[[:alpha:]\\s]+", "[]\\s]"}) {
    const auto split = RegexSplit::compile(*pattern == 0 ? "(?:)" : pattern, false, "x");
    ASSERT_TRUE(split.ok()) << pattern;
    std::vector<std::string_view> pieces;
    ASSERT_TRUE(split->split(text, pieces).ok());
    std::string joined;
    for (const std::string_view piece : pieces) {
      EXPECT_FALSE(piece.empty());
      EXPECT_TRUE(is_valid_utf8(piece));
      joined += piece;
    }
    EXPECT_EQ(joined, text);
  }
}

TEST(RegexSplit, LongMatchesAreFoundWhole) {
  const auto split = RegexSplit::compile("\\p{L}+|\\s+(?!\\S)|\\s+", false, "x");
  ASSERT_TRUE(split.ok());
  for (const std::size_t n :
       std::initializer_list<std::size_t>{510, 511, 512, 513, 2047, 2048, 2049, 100'000}) {
    const std::string text = std::string(n, 'a') + std::string(n, ' ') + "b";
    std::vector<std::string_view> pieces;
    ASSERT_TRUE(split->split(text, pieces).ok());
    ASSERT_EQ(pieces.size(), 4U);
    EXPECT_EQ(pieces[0].size(), n);
    EXPECT_EQ(pieces[1].size(), n - 1);
  }
}

TEST(RegexSplit, AMatchThatMovesBackwardsIsRefused) {
  const auto split = RegexSplit::compile("(?=ab\\K)", false, "x");
  if (!split.ok()) return;  // newer libraries refuse the pattern
  std::vector<std::string_view> pieces;
  EXPECT_FALSE(split->split("xxabab", pieces).ok());
}

}  // namespace
}  // namespace sluice::text

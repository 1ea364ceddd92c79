#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "fixtures.h"
#include "text/normalize.h"
#include "tokenizer_json.h"

namespace sluice::text {
namespace {

using Ids = std::vector<std::int32_t>;

std::unique_ptr<Tokenizer> make(const Json& json) {
  auto parsed = Tokenizer::parse(dump_json(json), "test");
  if (!parsed.ok()) throw std::runtime_error(parsed.error().message);
  return std::move(*parsed);
}

TEST(Tokenizer, RoundTripsRandomUnicode) {
  std::mt19937 random(3);
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (std::size_t n = random() % 60; n > 0; --n) {
      const char32_t ranges[] = {0x20, 0x7F, 0xA0, 0x400, 0x900, 0x4E00, 0xAC00, 0x1F600};
      append_utf8(text, ranges[random() % 8] + static_cast<char32_t>(random() % 90));
    }
    EXPECT_EQ(demo_tokenizer().decode(encode_or_throw(demo_tokenizer(), text)), to_nfc(text));
  }
}

TEST(Tokenizer, InvalidUtf8CountsAsReplacementCharacters) {
  const Tokenizer& tokenizer = demo_tokenizer();
  EXPECT_EQ(encode_or_throw(tokenizer, "a\xff\xf0\x9f z"), encode_or_throw(tokenizer, "a\uFFFD\uFFFD z"));
  std::mt19937 random(9);
  for (int round = 0; round < 500; ++round) {
    std::string bytes(random() % 40, '\0');
    for (char& c : bytes) c = static_cast<char>(static_cast<unsigned char>(random() & 0xFFU));
    EXPECT_EQ(tokenizer.decode(encode_or_throw(tokenizer, bytes, false)),
              to_nfc(replace_invalid_utf8(bytes)));
  }
}

TEST(Tokenizer, ControlTokensInUntrustedTextCanBeTakenAsText) {
  const Ids ids = encode_or_throw(demo_tokenizer(), "<|im_end|>", false);
  EXPECT_GT(ids.size(), 1U);
  EXPECT_EQ(demo_tokenizer().decode(ids), "<|im_end|>");
  EXPECT_EQ(encode_or_throw(demo_tokenizer(), "<|im_end|>"), Ids{4066});
}

TEST(Tokenizer, KnowsItsAddedTokens) {
  const Tokenizer& tokenizer = demo_tokenizer();
  EXPECT_EQ(tokenizer.id_of("<|im_end|>"), 4066);
  EXPECT_EQ(tokenizer.id_of("Hello"), std::nullopt);
  EXPECT_TRUE(tokenizer.is_special(4066));
  EXPECT_FALSE(tokenizer.is_special(*tokenizer.id_of("<think>")));
  EXPECT_FALSE(tokenizer.is_special(-1));
  EXPECT_FALSE(tokenizer.is_special(1 << 30));
  EXPECT_EQ(tokenizer.vocab_size(), 4078);
}

TEST(Tokenizer, SkippingSpecialTokensKeepsTagsThatAreNotSpecial) {
  const Ids ids = encode_or_throw(demo_tokenizer(), "<|im_start|>a<think>b</think><|im_end|>");
  EXPECT_EQ(demo_tokenizer().decode(ids, true), "a<think>b</think>");
}

TEST(Tokenizer, IdsWithoutATokenDecodeToNothing) {
  const Ids ids{64, 4078, 4095, -1, 1 << 30, 65};
  EXPECT_EQ(demo_tokenizer().decode(ids), "ab");
  EXPECT_EQ(demo_tokenizer().token_bytes(4090), "");
  EXPECT_FALSE(demo_tokenizer().is_token(4090));
  EXPECT_TRUE(demo_tokenizer().is_token(64));
}

TEST(Tokenizer, TokenBytesAreRaw) {
  const Ids ids = encode_or_throw(demo_tokenizer(), "\U0001F44D");
  ASSERT_EQ(ids.size(), 4U);
  EXPECT_EQ(demo_tokenizer().token_bytes(ids[0]), "\xF0");
  EXPECT_EQ(demo_tokenizer().decode(std::span(ids).first(2)), "\uFFFD");
}

TEST(Tokenizer, TheLongestAddedTokenWins) {
  Json json = small_tokenizer();
  json["added_tokens"] = {added_token(300, "<a>"), added_token(301, "<a><b>"), added_token(302, "a><c")};
  const auto tokenizer = make(json);
  EXPECT_EQ(encode_or_throw(*tokenizer, "<a><b><a><c"), (Ids{301, 300, '<', 'c'}));
}

TEST(Tokenizer, AddedTokensTakeWhiteSpaceAlongWhenTheySaySo) {
  Json json = small_tokenizer();
  json["added_tokens"] = {added_token(300, "<l>"), added_token(301, "<r>")};
  json["added_tokens"][0]["lstrip"] = true;
  json["added_tokens"][1]["rstrip"] = true;
  const auto tokenizer = make(json);
  EXPECT_EQ(encode_or_throw(*tokenizer, "a \u3000<l> b"), (Ids{'a', 300, ' ', 'b'}));
  EXPECT_EQ(encode_or_throw(*tokenizer, "a <r> \n b"), (Ids{'a', ' ', 301, 'b'}));
  EXPECT_EQ(encode_or_throw(*tokenizer, "<r>  <l>"), (Ids{301, 300}));
}

TEST(Tokenizer, SingleWordTokensNeedFreeSides) {
  Json json = small_tokenizer();
  json["added_tokens"] = {added_token(300, "ab")};
  json["added_tokens"][0]["single_word"] = true;
  const auto tokenizer = make(json);
  EXPECT_EQ(encode_or_throw(*tokenizer, "ab"), Ids{300});
  EXPECT_EQ(encode_or_throw(*tokenizer, "-ab!"), (Ids{'-', 300, '!'}));
  EXPECT_EQ(encode_or_throw(*tokenizer, "xab"), (Ids{'x', 'a', 'b'}));
  EXPECT_EQ(encode_or_throw(*tokenizer, "ab_"), (Ids{'a', 'b', '_'}));
}

TEST(Tokenizer, NormalizedTokensAreLookedForAfterNormalisation) {
  Json json = small_tokenizer();
  json["normalizer"] = {{"type", "NFC"}};
  json["added_tokens"] = {added_token(300, "e\u0301!"), added_token(301, "e\u0301?")};
  json["added_tokens"][0]["normalized"] = true;
  const auto tokenizer = make(json);
  EXPECT_EQ(encode_or_throw(*tokenizer, "\u00E9!"), Ids{300});
  EXPECT_EQ(encode_or_throw(*tokenizer, "e\u0301!"), Ids{300});
  EXPECT_EQ(encode_or_throw(*tokenizer, "e\u0301?"), Ids{301});
  EXPECT_EQ(encode_or_throw(*tokenizer, "\u00E9?"), (Ids{0xC3, 0xA9, '?'}));
}

TEST(Tokenizer, MergesMayBeWrittenAsStrings) {
  Json json = small_tokenizer({{"a", "b"}, {"ab", "c"}});
  const auto pairs = make(json);
  json["model"]["merges"] = {"a b", "ab c"};
  const auto strings = make(json);
  EXPECT_EQ(encode_or_throw(*pairs, "abcab"), (Ids{257, 256}));
  EXPECT_EQ(encode_or_throw(*strings, "abcab"), (Ids{257, 256}));
}

TEST(Tokenizer, IgnoreMergesTakesWholePiecesAsTheyStand) {
  Json json = small_tokenizer({{"a", "b"}});
  json["model"]["vocab"]["abab"] = 257;
  EXPECT_EQ(encode_or_throw(*make(json), "abab"), (Ids{256, 256}));
  json["model"]["ignore_merges"] = true;
  EXPECT_EQ(encode_or_throw(*make(json), "abab"), Ids{257});
}

TEST(Tokenizer, SplitsBeforeByteLevelKeepMergesApart) {
  Json json = small_tokenizer({{"1", "2"}, {"a", "b"}});
  json["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"Regex", "\\p{N}"}}}, {"behavior", "Isolated"}, {"invert", false}},
        {{"type", "Split"}, {"pattern", {{"String", "."}}}, {"behavior", "Isolated"}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}};
  EXPECT_EQ(encode_or_throw(*make(json), "ab12a.b"), (Ids{257, '1', '2', 'a', '.', 'b'}));
}

TEST(Tokenizer, MongolianVowelSeparatorIsNoSpace) {
  // PCRE2's \s counts U+180E; the White_Space property, which tokenizer files mean, does not.
  Json json = small_tokenizer({{"!", "\xE1"}, {" ", "\xE1"}});
  json["pre_tokenizer"]["use_regex"] = true;
  EXPECT_EQ(encode_or_throw(*make(json), "!\u180E"), (Ids{256, 0xA0, 0x8E}));
}

TEST(Tokenizer, ThreadsMayEncodeTogether) {
  const std::string text = "the quick brown fox, 123 and again the quick brown fox";
  const Ids expected = encode_or_throw(demo_tokenizer(), text);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) wrong[t] += encode_or_throw(demo_tokenizer(), text) == expected ? 0 : 1;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(Tokenizer, ALongRunOfCombiningMarksIsNoTrap) {
  std::string text = "a";
  for (int i = 0; i < 200'000; ++i) text += "\u0301";  // class 230
  for (int i = 0; i < 200'000; ++i) text += "\u0316";  // class 220: belongs before all of those
  const std::string composed = to_nfc(text);
  EXPECT_EQ(composed.substr(0, 4), "\u00E1\u0316");  // composed, then the marks in order
  EXPECT_EQ(demo_tokenizer().decode(encode_or_throw(demo_tokenizer(), text)), composed);
}

TEST(Normalize, ComposesAsUnicodeSays) {
  EXPECT_EQ(to_nfc("e\u0301"), "\u00E9");
  EXPECT_EQ(to_nfc("\u1112\u1161\u11AB"), "\uD55C");
  EXPECT_EQ(to_nfc("\u0958"), "\u0915\u093C");          // excluded from composition
  EXPECT_EQ(to_nfc("q\u0307\u0323"), "q\u0323\u0307");  // reordered, nothing to compose
  EXPECT_EQ(to_nfc("\u212B"), "\u00C5");
  EXPECT_EQ(to_nfc("\uFB01 \u00BD"), "\uFB01 \u00BD");  // compatibility forms stay
}

}  // namespace
}  // namespace sluice::text

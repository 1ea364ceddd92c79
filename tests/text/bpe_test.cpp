#include "text/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

#include "fixtures.h"
#include "text/byte_level.h"
#include "text/utf8.h"

namespace sluice::text {
namespace {

struct Rules {
  std::array<std::int32_t, 256> byte_ids{};
  std::vector<MergeRule> merges;
};

// The definition, step by step: merge the best-ranked pair, leftmost first, until none is left.
std::vector<std::int32_t> naive(const Rules& rules, std::string_view piece) {
  std::map<std::pair<std::int32_t, std::int32_t>, std::size_t> ranks;
  for (std::size_t i = 0; i < rules.merges.size(); ++i)
    ranks[{rules.merges[i].left, rules.merges[i].right}] = i;
  std::vector<std::int32_t> ids;
  for (const char c : piece) ids.push_back(rules.byte_ids[static_cast<unsigned char>(c)]);
  for (;;) {
    std::size_t best = rules.merges.size();
    std::size_t where = 0;
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto it = ranks.find({ids[i], ids[i + 1]});
      if (it != ranks.end() && it->second < best) {
        best = it->second;
        where = i;
      }
    }
    if (best == rules.merges.size()) return ids;
    ids[where] = rules.merges[best].result;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(where) + 1);
  }
}

Rules random_rules(std::mt19937& random, int letters, int merges) {
  Rules rules;
  for (std::size_t b = 0; b < 256; ++b) rules.byte_ids[b] = static_cast<std::int32_t>(b);
  std::vector<std::int32_t> known;
  for (int i = 0; i < letters; ++i) known.push_back('a' + i);
  for (int i = 0; i < merges; ++i) {
    const std::int32_t result = 256 + i;
    rules.merges.push_back({known[random() % known.size()], known[random() % known.size()], result});
    known.push_back(result);
  }
  return rules;
}

TEST(Bpe, MatchesTheNaiveMergeOnRandomRulesAndText) {
  std::mt19937 random(11);
  for (int round = 0; round < 400; ++round) {
    const Rules rules =
        random_rules(random, 2 + static_cast<int>(random() % 4), static_cast<int>(random() % 60));
    const Bpe bpe(rules.byte_ids, rules.merges);
    for (int texts = 0; texts < 20; ++texts) {
      std::string text(1 + random() % 80, 'a');
      for (char& c : text) c = static_cast<char>('a' + random() % 5);
      std::vector<std::int32_t> ids;
      bpe.encode(text, ids);
      ASSERT_EQ(ids, naive(rules, text)) << text;
    }
  }
}

TEST(Bpe, OfTwoRulesForAPairTheLaterHolds) {
  Rules rules;
  rules.merges = {{0, 0, 300}, {0, 0, 301}};
  std::vector<std::int32_t> ids;
  Bpe(rules.byte_ids, rules.merges).encode("ab", ids);
  EXPECT_EQ(ids, std::vector<std::int32_t>{301});
}

TEST(Bpe, LongPiecesAreNoSlowerByTheByte) {
  // Quadratic merging of these would take minutes.
  std::mt19937 random(5);
  const Rules rules = random_rules(random, 1, 200);
  const Bpe bpe(rules.byte_ids, rules.merges);
  const std::string text(1 << 20, 'a');
  std::vector<std::int32_t> ids;
  bpe.encode(text, ids);
  EXPECT_LT(ids.size(), text.size());
  for (const std::string& run : {std::string(1 << 20, 'a'), std::string(1 << 20, ' '),
                                 std::string(1 << 20, '\n'), std::string(1 << 20, '!')}) {
    EXPECT_EQ(demo_tokenizer().decode(encode_or_throw(demo_tokenizer(), run)), run);
  }
  std::string cjk;
  for (int i = 0; i < 350'000; ++i) cjk += "\xE4\xB8\x96";
  EXPECT_EQ(demo_tokenizer().decode(encode_or_throw(demo_tokenizer(), cjk)), cjk);
}

TEST(ByteLevel, TheAlphabetIsOneToOne) {
  for (int byte = 0; byte < 256; ++byte) {
    std::string text;
    append_utf8(text, byte_level_char(static_cast<std::uint8_t>(byte)));
    EXPECT_EQ(byte_level_decode(text), std::string(1, static_cast<char>(byte)));
  }
  EXPECT_EQ(byte_level_char(' '), U'\u0120');
  EXPECT_EQ(byte_level_char('A'), U'A');
  EXPECT_EQ(byte_level_decode(" "), std::nullopt);
  EXPECT_EQ(byte_level_decode("\u4E16"), std::nullopt);
  EXPECT_EQ(byte_level_decode("\xFF"), std::nullopt);
}

}  // namespace
}  // namespace sluice::text

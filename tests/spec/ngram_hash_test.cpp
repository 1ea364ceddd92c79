#include "spec/ngram_hash.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <numeric>

#include "spec/primes.h"
#include "support/fixtures.h"
#include "support/random_model.h"
#include "support/released_config.h"

namespace sluice::spec {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ModelConfig parse(const Json& json) {
  auto config = parse_config(json, "config.json");
  if (!config) {
    ADD_FAILURE() << config.error().message;
    return {};
  }
  return *config;
}

NgramHash derive(const ModelConfig& config, std::int64_t index = 0) {
  auto hash = derive_ngram_hash(config, index);
  if (!hash) {
    ADD_FAILURE() << hash.error().message;
    return {};
  }
  return *hash;
}

std::vector<std::int64_t> rows_of(const NgramHash& hash, std::span<const std::int32_t> history) {
  std::vector<std::int64_t> rows(hash.sizes.size());
  hash.rows_of(history, rows);
  return rows;
}

TEST(Primes, AgreeWithASieve) {
  std::vector<bool> composite(20000);
  for (std::size_t n = 2; n < composite.size(); ++n) {
    EXPECT_EQ(is_prime(n), !composite[n]) << n;
    for (std::size_t m = 2 * n; m < composite.size(); m += n) composite[m] = true;
  }
  EXPECT_FALSE(is_prime(0));
  EXPECT_FALSE(is_prime(1));
}

TEST(Primes, LargeOnes) {
  EXPECT_TRUE(is_prime(2147483647));
  EXPECT_TRUE(is_prime(4294967291));
  EXPECT_FALSE(is_prime(4294967295));
  EXPECT_FALSE(is_prime(3215031751));  // a strong pseudoprime to 2, 3, 5 and 7
  EXPECT_EQ(next_prime(20000000), 20000003U);
  EXPECT_EQ(next_prime(2147483648), 2147483659U);
}

TEST(NgramHash, ReleasedConstantsAreDerived) {
  const NgramHash hash = derive(parse(test::released_config()));
  EXPECT_THAT(hash.multipliers, ElementsAre(23703573157769, 20109073645365, 8052911324071));
  EXPECT_THAT(hash.sizes,
              ElementsAre(20000003, 20000023, 20000033, 20000047, 20000059, 20000063, 20000069, 20000077,
                          20000081, 20000093, 20000107, 20000147, 20000153, 20000159, 20000161, 20000171));
  EXPECT_EQ(hash.offsets.front(), 0);
  EXPECT_EQ(hash.offsets.back(), 300001275);
  EXPECT_EQ(std::accumulate(hash.sizes.begin(), hash.sizes.end(), std::int64_t{0}), 320001446);
  EXPECT_EQ(hash.rows, 320001536);
  EXPECT_EQ(hash.eos, 248044);
}

TEST(NgramHash, FixtureConstantsAreDerived) {
  for (const char* name : {"tiny", "tiny4"}) {
    const std::filesystem::path folder = std::filesystem::path(SLUICE_TEST_DATA) / "model" / name;
    const auto text = read_text_file(folder / "config.json", 1 << 20);
    ASSERT_TRUE(text.ok());
    const NgramHash hash = derive(parse(*parse_json(*text, "config.json")));
    const auto file = test::Fixture::load(folder / "model.safetensors");
    const std::string prefix = std::string(name) == "tiny" ? "model.language_model" : "language_model.model";
    const std::string ple = prefix + ".layers.1.ple.ple_embedding.";
    EXPECT_EQ(hash.multipliers, file.ints(ple + "layer_multipliers"));
    EXPECT_EQ(hash.sizes, file.ints(ple + "ngram_heads_vocab_sizes"));
    EXPECT_EQ(hash.offsets, file.ints(ple + "ngram_heads_offsets"));
    EXPECT_EQ(hash.rows, 4 * 544);
  }
}

TEST(NgramHash, SecondPleLayerTakesTheNextPrimes) {
  Json json = test::released_config();
  json["text_config"]["ple_layer_ids"] = {2, 3};
  const ModelConfig config = parse(json);
  const NgramHash first = derive(config, 0), second = derive(config, 1);
  EXPECT_EQ(second.sizes.front(), static_cast<std::int64_t>(next_prime(20000172)));
  EXPECT_EQ(second.offsets.front(), 0);
  EXPECT_NE(first.multipliers, second.multipliers);
  EXPECT_FALSE(derive_ngram_hash(config, 2).ok());
  EXPECT_FALSE(derive_ngram_hash(config, -1).ok());
}

// faults.md 7: products pass 2^31 and, with a multiplier above 2^32, also wrap 2^64.
TEST(NgramHash, SixtyFourBitArithmeticWithFloorMod) {
  NgramHash hash;
  hash.multipliers = {0x7000000000000001, 3};
  hash.sizes = {1009};
  hash.offsets = {std::int64_t{1} << 31};
  hash.heads_per_ngram = 1;
  hash.eos = 0;
  const std::array<std::int32_t, 2> history = {5, 248000};
  __extension__ using Wide = __int128;
  const auto wrapped =
      static_cast<std::int64_t>(static_cast<std::uint64_t>(Wide{248000} * 0x7000000000000001)) ^ 15;
  const std::int64_t rest = (wrapped % 1009 + 1009) % 1009;
  EXPECT_EQ(rows_of(hash, history)[0], (std::int64_t{1} << 31) + rest);

  hash.multipliers = {0x7FFFFFFFFFFFFFFF, 1};  // 2 x it wraps to -2
  const std::array<std::int32_t, 2> negative = {0, 2};
  EXPECT_EQ(rows_of(hash, negative)[0], (std::int64_t{1} << 31) + 1007);
}

// faults.md 8: [a, EOS, b, c] and a prompt of one token.
TEST(NgramHash, EosCutsTheWindow) {
  const NgramHash hash = derive(parse(test::tiny_config()));
  const auto eos = static_cast<std::int32_t>(hash.eos);
  const std::array<std::int32_t, 4> history = {7, eos, 9, 11};
  const std::span<const std::int32_t> all(history);
  const std::array<std::int32_t, 3> after_eos = {eos, eos, 9};
  EXPECT_EQ(rows_of(hash, all.first(3)), rows_of(hash, after_eos));
  const std::array<std::int32_t, 3> two_after = {eos, 9, 11};
  EXPECT_EQ(rows_of(hash, all), rows_of(hash, two_after));
  // EOS itself still sees its predecessor.
  const std::array<std::int32_t, 2> other = {8, eos};
  EXPECT_NE(rows_of(hash, all.first(2)), rows_of(hash, other));
  const std::array<std::int32_t, 3> single = {eos, eos, 7};
  EXPECT_EQ(rows_of(hash, all.first(1)), rows_of(hash, single));
}

// faults.md 11: one prefix, two continuations; the hash has no state to mix up.
TEST(NgramHash, DivergingSequencesShareNothing) {
  const NgramHash hash = derive(parse(test::tiny_config()));
  const std::array<std::int32_t, 3> a = {4, 5, 6}, b = {4, 5, 7};
  const auto first = rows_of(hash, a);
  EXPECT_NE(first, rows_of(hash, b));
  EXPECT_EQ(first, rows_of(hash, a));
}

TEST(NgramHash, RowsStayInsideTheirHeads) {
  Json json = test::tiny_config();
  json["text_config"]["ngram_size"] = 5;
  json["text_config"]["heads_per_ngram"] = 1;
  const NgramHash hash = derive(parse(json));
  for (std::int32_t t = 0; t < 512; t += 7) {
    const std::array<std::int32_t, 6> history = {t, 511 - t, 3, t, 500, t};
    const auto rows = rows_of(hash, history);
    for (std::size_t h = 0; h < rows.size(); ++h) {
      EXPECT_GE(rows[h], hash.offsets[h]);
      EXPECT_LT(rows[h], hash.offsets[h] + hash.sizes[h]);
    }
  }
}

// faults.md 6: heads that pass 2^31 rows together.
TEST(NgramHash, TablesAboveInt32) {
  Json json = test::tiny_config();
  json["text_config"]["ngram_vocab_size_base"] = 2000000000;
  const NgramHash hash = derive(parse(json));
  EXPECT_GT(hash.offsets.back(), std::int64_t{1} << 32);
  const std::array<std::int32_t, 1> history = {500};
  EXPECT_GE(rows_of(hash, history).back(), hash.offsets.back());
}

TEST(NgramHash, HostilePrimeSearchIsRefused) {
  Json json = test::tiny_config();
  Json& text = json["text_config"];
  text["num_hidden_layers"] = 1000;
  text["layer_types"] = Json(std::vector<std::string>(1000, "linear_attention"));
  Json& ids = text["ple_layer_ids"] = Json::array();
  for (int i = 1; i <= 1000; ++i) ids.push_back(i);
  text["heads_per_ngram"] = 64;
  text["ple_embed_dim"] = 128;
  text["ngram_vocab_size_base"] = std::int64_t{1} << 31;
  const ModelConfig config = parse(json);
  EXPECT_EQ(derive(config, 100).sizes.size(), 128U);
  const auto hash = derive_ngram_hash(config, 999);
  ASSERT_FALSE(hash.ok());
  EXPECT_EQ(hash.error().code, ErrorCode::kLimit);
}

class CheckNgramHash : public testing::Test {
 protected:
  ModelConfig config_ = parse(test::tiny_config());
  NgramHash hash_ = derive(config_);

  void expect_error(std::string_view part, std::int64_t rows = 1 << 20) {
    const auto result = check_ngram_hash(hash_, *config_.ple, rows);
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::kCorrupt);
    EXPECT_THAT(result.error().message, HasSubstr(std::string(part)));
  }
};

TEST_F(CheckNgramHash, AcceptsItsOwn) {
  EXPECT_TRUE(check_ngram_hash(hash_, *config_.ple, hash_.rows).ok());
}

TEST_F(CheckNgramHash, CountsMustMatch) {
  hash_.sizes.pop_back();
  expect_error("ngram_heads_vocab_sizes: 3 values found, 4 needed");
  hash_ = derive(config_);
  hash_.offsets.push_back(0);
  expect_error("ngram_heads_offsets: 5 values found, 4 needed");
  hash_ = derive(config_);
  hash_.multipliers.clear();
  expect_error("layer_multipliers: 0 values found, 3 needed");
}

TEST_F(CheckNgramHash, SizesMustBePositive) {
  hash_.sizes[2] = 0;
  expect_error("ngram_heads_vocab_sizes[2]: 0 found");
  hash_.sizes[2] = -5;
  expect_error("ngram_heads_vocab_sizes[2]: -5 found");
  hash_.sizes[2] = std::numeric_limits<std::int64_t>::max();
  expect_error("ngram_heads_vocab_sizes[2]: 9223372036854775807 found");
}

TEST_F(CheckNgramHash, OffsetsMustFollowTheSizes) {
  hash_.offsets[1] += 1;
  expect_error("ngram_heads_offsets[1]");
  hash_ = derive(config_);
  hash_.offsets[0] = -1;
  expect_error("ngram_heads_offsets[0]: -1 found");
}

TEST_F(CheckNgramHash, TableMustHoldAllHeads) {
  const std::int64_t end = hash_.offsets.back() + hash_.sizes.back();
  EXPECT_TRUE(check_ngram_hash(hash_, *config_.ple, end).ok());
  expect_error(fmt::format("table: {} rows found, at least {} needed", end - 1, end), end - 1);
  expect_error("1 to 0 (table rows) needed", 0);
}

}  // namespace
}  // namespace sluice::spec

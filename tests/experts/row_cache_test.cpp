// Which rows stay, in how much memory.
#include "experts/row_cache.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>

namespace sluice::experts {
namespace {

using Row = std::array<std::byte, 12>;
using Expect = RowCache::Expect;

Row row_of(std::int64_t row) {
  Row stored{};
  std::memcpy(stored.data() + 3, &row, sizeof row);
  return stored;
}

bool has(RowCache& cache, std::int64_t row, Expect expect = Expect::kOnce) {
  const std::byte* found = cache.find(row, expect);
  if (found == nullptr) return false;
  const Row needed = row_of(row);
  EXPECT_EQ(std::memcmp(found, needed.data(), needed.size()), 0) << row;
  return true;
}

void use(RowCache& cache, std::int64_t row, Expect expect) {
  if (!has(cache, row, expect)) cache.insert(row, row_of(row), expect);
}

constexpr std::int64_t kMany = std::int64_t{1} << 40;

TEST(RowCache, TakesWhatItsCostSaysAndNeverMore) {
  for (const std::uint64_t bytes : {0U, 100U, 335U, 336U, 100000U}) {
    RowCache cache(bytes, sizeof(Row), kMany);
    EXPECT_EQ(cache.bytes(), RowCache::cost(bytes, sizeof(Row), kMany));
    EXPECT_LE(cache.bytes(), bytes);
    EXPECT_GT(cache.bytes() + 336, bytes);  // a set of 16 rows, their numbers and ranks
    std::mt19937_64 random(1);
    for (int i = 0; i < 20000; ++i) use(cache, static_cast<std::int64_t>(random() % kMany), Expect::kAgain);
    EXPECT_EQ(cache.bytes(), RowCache::cost(bytes, sizeof(Row), kMany));
  }
  // A small table needs little.
  EXPECT_LT(RowCache::cost(std::uint64_t{1} << 30, sizeof(Row), 1000), 100000U);
}

TEST(RowCache, GivesBackTheBytesOfEachRow) {
  RowCache cache(1 << 16, sizeof(Row), kMany);
  std::mt19937_64 random(2);
  int found = 0;
  for (int i = 0; i < 100000; ++i) {
    const auto row = static_cast<std::int64_t>(random() % 5000);
    const auto expect = random() % 2 == 0 ? Expect::kAgain : Expect::kOnce;
    if (has(cache, row, expect)) {
      ++found;
    } else {
      cache.insert(row, row_of(row), expect);
      EXPECT_TRUE(has(cache, row));
    }
  }
  EXPECT_GT(found, 20000);
}

TEST(RowCache, ALongPromptLeavesWhatDecodingComesBackTo) {
  RowCache cache(1 << 20, sizeof(Row), kMany);
  constexpr std::int64_t kHot = 10000;  // a fifth of what it holds
  for (int turn = 0; turn < 2; ++turn) {
    for (std::int64_t row = 0; row < kHot; ++row) use(cache, row, Expect::kAgain);
  }
  for (std::int64_t row = 0; row < 1000000; ++row) use(cache, kHot + row, Expect::kOnce);
  std::int64_t left = 0;
  for (std::int64_t row = 0; row < kHot; ++row) left += has(cache, row) ? 1 : 0;
  EXPECT_GT(left, kHot * 99 / 100);
}

TEST(RowCache, DecodingIsNotLeftOutByWhatWasHotOnce) {
  RowCache cache(1 << 14, sizeof(Row), kMany);
  for (int turn = 0; turn < 3; ++turn) {
    for (std::int64_t row = 0; row < 700; ++row) use(cache, row, Expect::kAgain);
  }
  for (int turn = 0; turn < 4; ++turn) {
    for (std::int64_t row = 5000; row < 5300; ++row) use(cache, row, Expect::kAgain);
  }
  int there = 0;
  for (std::int64_t row = 5000; row < 5300; ++row) there += has(cache, row) ? 1 : 0;
  EXPECT_GT(there, 270);
}

}  // namespace
}  // namespace sluice::experts

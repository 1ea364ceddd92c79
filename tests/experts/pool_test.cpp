// Slots and leases under every kind of pressure (faults 44, 45, 50).
#include "experts/pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <latch>
#include <random>

namespace sluice::experts {
namespace {

constexpr std::size_t kSlot = 4096;

/// A record is its own number, all over.
Result<void> fill(std::int64_t id, std::span<std::byte> slot) {
  for (std::size_t at = 0; at < slot.size(); at += sizeof id) std::memcpy(slot.data() + at, &id, sizeof id);
  return {};
}

bool holds(const Pool& pool, std::size_t slot, std::int64_t id) {
  for (std::size_t at = 0; at < kSlot; at += sizeof id) {
    std::int64_t found = -1;
    std::memcpy(&found, pool.address(slot) + at, sizeof found);
    if (found != id) return false;
  }
  return true;
}

std::unique_ptr<Pool> make_pool(std::size_t slots, std::int64_t records, ReadSlot read = fill,
                                int threads = 2) {
  Pool::Options options;
  options.slots = slots;
  options.slot_bytes = kSlot;
  options.records = records;
  options.reader_threads = threads;
  auto pool = Pool::create(options, std::move(read));
  EXPECT_TRUE(pool.ok());
  return pool.ok() ? std::move(pool).value() : nullptr;
}

TEST(PoolTest, ALeasedRecordIsThereAfterWaiting) {
  const auto pool = make_pool(4, 100);
  const auto slot = pool->lease(7, 1);
  ASSERT_TRUE(slot.ok());
  ASSERT_TRUE(pool->wait(*slot).ok());
  EXPECT_TRUE(holds(*pool, *slot, 7));
  pool->release(*slot);
  // It stays for the next one.
  ASSERT_EQ(*pool->lease(7, 1), *slot);
  EXPECT_TRUE(pool->is_ready(*slot));
  EXPECT_EQ(pool->counts().hits, 1U);
  EXPECT_EQ(pool->counts().misses, 1U);
}

TEST(PoolTest, LeasedSlotsAreNeverTaken) {
  const auto pool = make_pool(3, 100);
  std::vector<std::size_t> leased;
  for (const std::int64_t record : {1, 2, 3}) leased.push_back(*pool->lease(record, 1));
  const auto none = pool->lease(4, 1);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ErrorCode::kLimit);
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(pool->wait(leased[i]).ok());
    EXPECT_TRUE(holds(*pool, leased[i], static_cast<std::int64_t>(i) + 1));
  }
  pool->release(leased[0]);
  EXPECT_EQ(*pool->lease(4, 1), leased[0]);
}

TEST(PoolTest, TheColdestGoes) {
  const auto pool = make_pool(3, 100);
  const auto use = [&](std::int64_t record) {
    const auto slot = pool->lease(record, 1);
    ASSERT_TRUE(slot.ok() && pool->wait(*slot).ok());
    pool->release(*slot);
    pool->tick();
  };
  for (const std::int64_t record : {1, 2, 3, 1, 3, 1}) use(record);
  use(4);  // in the place of 2
  const auto before = pool->counts().misses;
  for (const std::int64_t record : {1, 3, 4}) use(record);
  EXPECT_EQ(pool->counts().misses, before);
  use(2);
  EXPECT_EQ(pool->counts().misses, before + 1);
}

TEST(PoolTest, ARecordThatCannotBeReadIsNeverTakenForOne) {
  std::atomic<bool> broken = true;
  const auto pool = make_pool(2, 10, [&](std::int64_t id, std::span<std::byte> slot) -> Result<void> {
    if (broken) {
      std::fill(slot.begin(), slot.end(), std::byte{0xee});
      return make_error(ErrorCode::kIo, "record {}: input/output error", id);
    }
    return fill(id, slot);
  });
  for (int i = 0; i < 5; ++i) {
    const auto slot = pool->lease(3, 1);
    ASSERT_TRUE(slot.ok());
    const auto waited = pool->wait(*slot);
    ASSERT_FALSE(waited.ok());
    EXPECT_NE(waited.error().message.find("record 3"), std::string::npos);
    EXPECT_FALSE(pool->is_ready(*slot));
    pool->release(*slot);
  }
  EXPECT_EQ(pool->leased(), 0U);
  broken = false;
  const auto slot = pool->lease(3, 1);
  ASSERT_TRUE(pool->wait(*slot).ok());
  EXPECT_TRUE(holds(*pool, *slot, 3));
}

TEST(PoolTest, AReadAheadIsFoundUnderWay) {
  std::latch go(1);
  const auto pool = make_pool(
      4, 100,
      [&](std::int64_t id, std::span<std::byte> slot) {
        go.wait();
        return fill(id, slot);
      },
      1);
  pool->prefetch(5, 1);
  const auto slot = pool->lease(5, 1);
  ASSERT_TRUE(slot.ok());
  EXPECT_FALSE(pool->is_ready(*slot));
  go.count_down();
  ASSERT_TRUE(pool->wait(*slot).ok());
  EXPECT_TRUE(holds(*pool, *slot, 5));
  EXPECT_EQ(pool->counts().late, 1U);
  EXPECT_EQ(pool->counts().misses, 0U);
}

TEST(PoolTest, ReadingAheadNeverTakesAHotterRecord) {
  const auto pool = make_pool(2, 100);
  for (int i = 0; i < 10; ++i) {
    for (const std::int64_t record : {1, 2}) {
      const auto slot = pool->lease(record, 1);
      ASSERT_TRUE(pool->wait(*slot).ok());
      pool->release(*slot);
    }
  }
  const auto misses = pool->counts().misses;
  pool->prefetch(50, 0.25);
  for (const std::int64_t record : {1, 2}) {
    const auto slot = pool->lease(record, 1);
    pool->release(*slot);
  }
  EXPECT_EQ(pool->counts().misses, misses);
}

TEST(PoolTest, ALeaseGivenBackUnreadIsNotBelievedLater) {
  std::latch go(1);
  const auto pool = make_pool(
      2, 10,
      [&](std::int64_t id, std::span<std::byte> slot) {
        go.wait();
        return fill(id, slot);
      },
      1);
  const auto slot = pool->lease(1, 1);
  pool->release(*slot);  // while its read runs
  const auto again = pool->lease(1, 1);
  ASSERT_TRUE(again.ok());
  EXPECT_FALSE(pool->is_ready(*again));
  go.count_down();
  ASSERT_TRUE(pool->wait(*again).ok());
  EXPECT_TRUE(holds(*pool, *again, 1));
}

// Random use with reads that fail now and then: what is leased and waited for is always right, and nothing is
// left leased. The thread sanitizer watches this one.
TEST(PoolTest, NothingLeaksOrMixesUnderStress) {
  for (const std::size_t slots : {2U, 5U, 17U}) {
    std::atomic<std::uint32_t> calls = 0;
    const auto pool = make_pool(
        slots, 40,
        [&](std::int64_t id, std::span<std::byte> slot) -> Result<void> {
          if (++calls % 13 == 0) return make_error(ErrorCode::kIo, "passing");
          return fill(id, slot);
        },
        4);
    std::mt19937 random(static_cast<unsigned>(slots));
    std::vector<std::pair<std::int64_t, std::size_t>> leases;
    for (int i = 0; i < 5000; ++i) {
      const auto record = static_cast<std::int64_t>(random() % 40);
      const auto what = random() % 4;
      if (what == 0) {
        pool->prefetch(record, 0.5);
      } else if (what == 1 && !leases.empty()) {
        pool->release(leases.back().second);
        leases.pop_back();
      } else if (const auto slot = pool->lease(record, 1); slot.ok()) {
        leases.emplace_back(record, *slot);
        if (random() % 2 == 0) {
          ASSERT_TRUE(pool->wait(*slot).ok());
          ASSERT_TRUE(holds(*pool, *slot, record));
        }
      }
      pool->tick();
    }
    for (const auto& [record, slot] : leases) {
      ASSERT_TRUE(pool->wait(slot).ok());
      EXPECT_TRUE(holds(*pool, slot, record));
    }
    for (const auto& [record, slot] : leases) pool->release(slot);
    EXPECT_EQ(pool->leased(), 0U);
  }
}

}  // namespace
}  // namespace sluice::experts

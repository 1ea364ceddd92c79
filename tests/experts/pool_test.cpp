// Slots and leases under every kind of pressure (faults 44, 45, 50).
#include "experts/pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <random>

#include "backend/create.h"

#include "records.h"

namespace sluice::experts {
namespace {

bool holds(const Pool& pool, std::size_t slot, std::int64_t id) {
  return experts::holds(std::span(pool.address(slot), kSlot), id);
}

std::unique_ptr<Pool> make_pool(std::size_t slots, std::int64_t records, ReadSlot read = fill,
                                int threads = 2) {
  Pool::Options options;
  options.slots = slots;
  options.slot_bytes = kSlot;
  options.records = records;
  options.tier_bytes = {kSlot};
  options.half_life = 256;
  options.reader.threads = threads;
  auto pool = Pool::create(options, thread_records(std::move(read)));
  EXPECT_TRUE(pool.ok());
  return pool.ok() ? std::move(pool).value() : nullptr;
}

/// The slot of a lease that must succeed.
std::size_t lease(Pool& pool, std::int64_t record, double weight = 1) {
  const auto leased = pool.lease(record, weight);
  EXPECT_TRUE(leased.ok());
  return leased.ok() ? leased->slot : 0;
}

/// Leases a record, waits for it and gives it back.
void use(Pool& pool, std::int64_t record) {
  const std::size_t slot = lease(pool, record);
  ASSERT_TRUE(pool.wait(slot).ok());
  ASSERT_TRUE(holds(pool, slot, record));
  pool.release(slot);
}

TEST(PoolTest, ALeasedRecordIsThereAfterWaiting) {
  const auto pool = make_pool(4, 100);
  const std::size_t slot = lease(*pool, 7);
  ASSERT_TRUE(pool->wait(slot).ok());
  EXPECT_TRUE(holds(*pool, slot, 7));
  pool->release(slot);
  // It stays for the next one.
  const auto again = pool->lease(7, 1);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->slot, slot);
  EXPECT_EQ(again->found, Found::kHit);
  EXPECT_TRUE(pool->is_done(slot));
  EXPECT_EQ(pool->counts().hits, 1U);
  EXPECT_EQ(pool->counts().misses, 1U);
}

TEST(PoolTest, LeasedSlotsAreNeverTaken) {
  const auto pool = make_pool(3, 100);
  std::vector<std::size_t> leased;
  for (const std::int64_t record : {1, 2, 3}) leased.push_back(lease(*pool, record));
  const auto none = pool->lease(4, 1);
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ErrorCode::kLimit);
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(pool->wait(leased[i]).ok());
    EXPECT_TRUE(holds(*pool, leased[i], static_cast<std::int64_t>(i) + 1));
  }
  pool->release(leased[0]);
  EXPECT_EQ(lease(*pool, 4), leased[0]);
}

TEST(PoolTest, TheColdestGoes) {
  const auto pool = make_pool(3, 100);
  for (const std::int64_t record : {1, 2, 3, 1, 3, 1}) {
    use(*pool, record);
    pool->tick();
  }
  use(*pool, 4);  // in the place of 2
  const auto before = pool->counts().misses;
  for (const std::int64_t record : {1, 3, 4}) use(*pool, record);
  EXPECT_EQ(pool->counts().misses, before);
  use(*pool, 2);
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
    const std::size_t slot = lease(*pool, 3);
    const auto waited = pool->wait(slot);
    ASSERT_FALSE(waited.ok());
    EXPECT_NE(waited.error().message.find("record 3"), std::string::npos);
    pool->release(slot);
  }
  EXPECT_EQ(pool->leased(), 0U);
  broken = false;
  use(*pool, 3);
}

TEST(PoolTest, AFailedReadAheadIsReadAgainWhenItIsWanted) {
  std::atomic<bool> broken = true;
  const auto pool = make_pool(2, 10, [&](std::int64_t id, std::span<std::byte> slot) -> Result<void> {
    if (broken) return make_error(ErrorCode::kIo, "record {}: input/output error", id);
    return fill(id, slot);
  });
  ASSERT_TRUE(pool->prefetch(3, 1));
  while (pool->reader().counts().failures == 0) std::this_thread::yield();
  broken = false;
  use(*pool, 3);
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
  EXPECT_TRUE(pool->prefetch(5, 1));
  const auto leased = pool->lease(5, 1);
  ASSERT_TRUE(leased.ok());
  EXPECT_EQ(leased->found, Found::kLate);
  EXPECT_FALSE(pool->is_done(leased->slot));
  go.count_down();
  ASSERT_TRUE(pool->wait(leased->slot).ok());
  EXPECT_TRUE(holds(*pool, leased->slot, 5));
  EXPECT_EQ(pool->counts().late, 1U);
  EXPECT_EQ(pool->counts().ahead_late, 1U);
  EXPECT_EQ(pool->counts().misses, 0U);
}

TEST(PoolTest, WhatBecameOfReadsAheadIsCounted) {
  std::latch go(1);
  const auto pool = make_pool(
      2, 100,
      [&](std::int64_t id, std::span<std::byte> slot) {
        if (id == 9) go.wait();
        return fill(id, slot);
      },
      1);
  ASSERT_TRUE(pool->prefetch(1, 1));
  ASSERT_TRUE(pool->prefetch(2, 0.5));
  while (pool->reader().counts().reads < 2) std::this_thread::yield();
  use(*pool, 1);
  EXPECT_EQ(pool->counts().ahead_useful, 1U);
  // 3 goes where 2 was, which nobody wanted.
  use(*pool, 1);
  use(*pool, 3);
  EXPECT_EQ(pool->counts().ahead_wasted, 1U);
  // One that has not begun is taken back and counts nothing.
  const std::uint64_t bytes = pool->counts().bytes_read;
  const std::size_t slot = lease(*pool, 9);
  ASSERT_TRUE(pool->prefetch(4, 100));
  pool->cancel_ahead(4);
  EXPECT_FALSE(pool->has(4));
  EXPECT_EQ(pool->counts().ahead, 2U);
  EXPECT_EQ(pool->counts().bytes_read, bytes + kSlot);
  go.count_down();
  pool->release(slot);
}

TEST(PoolTest, ReadingAheadNeverTakesAHotterRecord) {
  const auto pool = make_pool(2, 100);
  for (int i = 0; i < 10; ++i) {
    for (const std::int64_t record : {1, 2}) use(*pool, record);
  }
  const auto misses = pool->counts().misses;
  EXPECT_FALSE(pool->prefetch(50, 0.25));
  for (const std::int64_t record : {1, 2}) use(*pool, record);
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
  pool->release(lease(*pool, 1));  // while its read runs
  const std::size_t again = lease(*pool, 1);
  EXPECT_FALSE(pool->is_done(again));
  go.count_down();
  ASSERT_TRUE(pool->wait(again).ok());
  EXPECT_TRUE(holds(*pool, again, 1));
}

// What a device reads in place lies where the device says, and is never given back under it.
TEST(PoolTest, PinnedMemoryIsUsedAsItIsAndKept) {
  const auto backend = std::move(backend::create_backend("emulated", {1})).value();
  Pool::Options options;
  options.slots = 8;
  options.slot_bytes = kSlot;
  options.records = 100;
  options.tier_bytes = {kSlot};
  const std::byte* memory = nullptr;
  options.allocate = [&](std::size_t bytes) {
    EXPECT_EQ(bytes, 8 * kSlot);
    auto lent = backend->allocate_host(bytes);
    if (lent.ok()) memory = (*lent)->address();
    return lent;
  };
  const auto pool = std::move(Pool::create(options, thread_records(fill))).value();
  EXPECT_TRUE(pool->pinned());
  for (std::int64_t record = 0; record < 30; ++record) use(*pool, record);
  EXPECT_EQ(pool->address(0), memory);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory) % 4096, 0U);
  pool->shrink(2);
  EXPECT_EQ(pool->slots(), 8U);
  // Memory that is not there is an error and nothing else.
  options.allocate = [](std::size_t) -> Result<std::unique_ptr<backend::Buffer>> {
    return make_error(ErrorCode::kOutOfMemory, "no pinned memory");
  };
  EXPECT_FALSE(Pool::create(options, thread_records(fill)).ok());
}

// Fault 48: slots that were given back are not filled again.
TEST(PoolTest, AShrunkPoolStaysSmall) {
  const auto pool = make_pool(32, 100);
  for (std::int64_t record = 0; record < 60; ++record) {
    use(*pool, record);
    pool->tick();
  }
  std::vector<std::size_t> held;
  for (std::int64_t record = 50; record < 60; ++record) held.push_back(lease(*pool, record));
  pool->shrink(8);
  EXPECT_EQ(pool->slots(), 10U);  // what is in use goes when it is given back
  for (std::size_t i = 0; i < held.size(); ++i) {
    EXPECT_TRUE(holds(*pool, held[i], 50 + static_cast<std::int64_t>(i)));
    pool->release(held[i]);
  }
  EXPECT_EQ(pool->slots(), 8U);
  EXPECT_EQ(pool->bytes(), 8 * kSlot);
  for (std::int64_t record = 0; record < 100; ++record) use(*pool, record);
  EXPECT_EQ(pool->slots(), 8U);
  EXPECT_EQ(pool->leased(), 0U);
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
      const auto what = random() % 5;
      if (what == 0) {
        pool->prefetch(record, 0.5);
      } else if (what == 1) {
        pool->cancel_ahead(record);
      } else if (what == 2 && !leases.empty()) {
        pool->release(leases.back().second);
        leases.pop_back();
      } else if (const auto leased = pool->lease(record, 1); leased.ok()) {
        leases.emplace_back(record, leased->slot);
        if (random() % 2 == 0) {
          ASSERT_TRUE(pool->wait(leased->slot).ok());
          ASSERT_TRUE(holds(*pool, leased->slot, record));
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

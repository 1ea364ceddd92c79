// Reads under way: order, cancellation, failures that pass and that stay.
#include "experts/record_reader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <memory>

namespace sluice::experts {
namespace {

std::vector<std::byte> g_memory(1 << 16);

Read read_of(std::int64_t id) {
  Read read;
  read.id = id;
  read.slot = std::span(g_memory).subspan(static_cast<std::size_t>(id) * 16, 16);
  return read;
}

TEST(RecordReader, ReadsWhatItIsAsked) {
  ThreadReader reader(
      [](std::int64_t id, std::span<std::byte> slot) -> Result<void> {
        std::fill(slot.begin(), slot.end(), static_cast<std::byte>(id));
        return {};
      },
      {.threads = 3});
  std::vector<Read> reads;
  for (std::int64_t id = 0; id < 100; ++id) reads.push_back(read_of(id));
  for (Read& read : reads) reader.start(read, Priority::kDemand);
  for (Read& read : reads) {
    ASSERT_TRUE(reader.wait(read).ok());
    EXPECT_EQ(read.slot[7], static_cast<std::byte>(read.id));
  }
  EXPECT_EQ(reader.counts().reads, 100U);
}

TEST(RecordReader, WhatIsWantedNowGoesFirst) {
  std::latch begin(1);
  std::vector<std::int64_t> order;
  ThreadReader reader(
      [&](std::int64_t id, std::span<std::byte>) -> Result<void> {
        if (id == 0) begin.wait();
        order.push_back(id);  // one thread: no race
        return {};
      },
      {.threads = 1});
  std::vector<Read> reads;
  for (std::int64_t id = 0; id < 6; ++id) reads.push_back(read_of(id));
  reader.start(reads[0], Priority::kDemand);
  for (const std::size_t i : {1U, 2U, 3U}) reader.start(reads[i], Priority::kAhead);
  reader.start(reads[4], Priority::kDemand);
  reader.promote(reads[3]);
  begin.count_down();
  for (const std::size_t i : {0U, 1U, 2U, 3U, 4U}) ASSERT_TRUE(reader.wait(reads[i]).ok());
  EXPECT_EQ(order, (std::vector<std::int64_t>{0, 4, 3, 1, 2}));
}

TEST(RecordReader, AReadThatHasNotBegunCanBeTakenBack) {
  std::latch begin(1);
  std::atomic<int> ran = 0;
  ThreadReader reader(
      [&](std::int64_t id, std::span<std::byte>) -> Result<void> {
        if (id == 0) begin.wait();
        ++ran;
        return {};
      },
      {.threads = 1});
  Read first = read_of(0);
  Read second = read_of(1);
  reader.start(first, Priority::kDemand);
  reader.start(second, Priority::kAhead);
  EXPECT_TRUE(reader.cancel(second));
  EXPECT_FALSE(reader.cancel(second));
  begin.count_down();
  ASSERT_TRUE(reader.wait(first).ok());
  EXPECT_EQ(ran, 1);
  EXPECT_FALSE(reader.is_done(second));
}

TEST(RecordReader, AFailureThatPassesIsNotSeen) {
  std::atomic<int> attempts = 0;
  ThreadReader reader(
      [&](std::int64_t, std::span<std::byte>) -> Result<void> {
        if (++attempts <= 2) return make_error(ErrorCode::kIo, "experts.bin: input/output error");
        return {};
      },
      {.threads = 1, .retries = 2});
  Read read = read_of(1);
  reader.start(read, Priority::kDemand);
  EXPECT_TRUE(reader.wait(read).ok());
  EXPECT_EQ(reader.counts().retries, 2U);
  EXPECT_EQ(reader.counts().failures, 0U);
}

TEST(RecordReader, AFailureThatStaysIsToldWithItsReason) {
  std::atomic<int> attempts = 0;
  ThreadReader reader(
      [&](std::int64_t, std::span<std::byte>) -> Result<void> {
        ++attempts;
        return make_error(ErrorCode::kCorrupt, "experts.bin: expert 3 of layer 1: checksum");
      },
      {.threads = 2, .retries = 2});
  Read read = read_of(1);
  reader.start(read, Priority::kDemand);
  const auto failed = reader.wait(read);
  ASSERT_FALSE(failed.ok());
  EXPECT_NE(failed.error().message.find("expert 3 of layer 1"), std::string::npos);
  EXPECT_EQ(attempts, 3);  // bounded
  // The same object can be used again.
  reader.start(read, Priority::kDemand);
  EXPECT_FALSE(reader.wait(read).ok());
}

TEST(RecordReader, MemoryThatRunsOutIsAnError) {
  ThreadReader reader([](std::int64_t, std::span<std::byte>) -> Result<void> { throw std::bad_alloc(); },
                      {.threads = 1, .retries = 0});
  Read read = read_of(1);
  reader.start(read, Priority::kDemand);
  EXPECT_EQ(reader.wait(read).error().code, ErrorCode::kOutOfMemory);
}

TEST(RecordReader, EndsWithReadsStillQueued) {
  std::latch begin(1);
  auto reader = std::make_unique<ThreadReader>(
      [&](std::int64_t, std::span<std::byte>) -> Result<void> {
        begin.wait();
        return {};
      },
      RecordReader::Options{.threads = 1});
  std::vector<Read> reads;
  for (std::int64_t id = 0; id < 50; ++id) reads.push_back(read_of(id));
  for (Read& read : reads) reader->start(read, Priority::kAhead);
  begin.count_down();
  reader.reset();
}

}  // namespace
}  // namespace sluice::experts

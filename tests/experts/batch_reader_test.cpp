// Batches of reads: order, failures, ends in every state.
#include "experts/batch_reader.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <random>
#include <stdexcept>

namespace sluice::experts {
namespace {

using Reads = std::vector<std::size_t>;

TEST(BatchReader, EveryReadIsMadeOnce) {
  std::vector<std::vector<std::atomic<int>>> made(3);
  for (auto& group : made) group = std::vector<std::atomic<int>>(500);
  BatchReader reader(
      [&](const BatchReader::Read& read) -> Result<void> {
        ++made[read.group][read.number];
        return {};
      },
      4, 3, 2);
  reader.start(Reads{500, 0, 37});
  for (const std::size_t group : {0U, 1U, 2U}) ASSERT_TRUE(reader.wait(group).ok());
  for (const auto& count : made[0]) EXPECT_EQ(count, 1);
  for (std::size_t i = 0; i < 500; ++i) EXPECT_EQ(made[2][i], i < 37 ? 1 : 0);
  EXPECT_EQ(reader.counts().reads, 537U);
  EXPECT_EQ(reader.running(), 0U);
}

TEST(BatchReader, EarlierGroupsGoFirst) {
  std::vector<std::size_t> order;
  BatchReader reader(
      [&](const BatchReader::Read& read) -> Result<void> {
        order.push_back(read.group * 10 + read.number);  // one thread: no race
        return {};
      },
      1, 2, 0);
  reader.start(Reads{3, 2});
  ASSERT_TRUE(reader.wait(1).ok());
  EXPECT_EQ(order, (std::vector<std::size_t>{0, 1, 2, 10, 11}));
}

TEST(BatchReader, AGroupIsThereBeforeTheNextHasEnded) {
  std::latch go(1);
  BatchReader reader(
      [&](const BatchReader::Read& read) -> Result<void> {
        if (read.group == 1) go.wait();
        return {};
      },
      2, 2, 0);
  reader.start(Reads{4, 4});
  EXPECT_TRUE(reader.wait(0).ok());
  go.count_down();
  EXPECT_TRUE(reader.wait(1).ok());
}

TEST(BatchReader, TheErrorIsThatOfTheFirstReadThatFailed) {
  for (const std::size_t threads : {1U, 4U}) {
    std::atomic<int> attempts = 0;
    BatchReader reader(
        [&](const BatchReader::Read& read) -> Result<void> {
          if (read.number % 5 != 3) return {};
          ++attempts;
          return make_error(ErrorCode::kIo, "read {}", read.number);
        },
        threads, 1, 2);
    reader.start(Reads{20});
    const auto failed = reader.wait(0);
    ASSERT_FALSE(failed.ok());
    EXPECT_EQ(failed.error().message, "read 3");
    EXPECT_EQ(attempts, 4 * 3);  // bounded
    // The next batch knows nothing of it.
    reader.start(Reads{3});
    EXPECT_TRUE(reader.wait(0).ok());
  }
}

TEST(BatchReader, ExceptionsAreErrors) {
  BatchReader reader(
      [](const BatchReader::Read& read) -> Result<void> {
        if (read.group == 0) throw std::bad_alloc();
        throw std::runtime_error("odd");
      },
      2, 2, 0);
  reader.start(Reads{1, 1});
  EXPECT_EQ(reader.wait(0).error().code, ErrorCode::kOutOfMemory);
  EXPECT_NE(reader.wait(1).error().message.find("odd"), std::string::npos);
}

TEST(BatchReader, CancelDropsWhatHasNotBegunAndWaitsForTheRest) {
  std::latch begun(2), go(1);
  std::atomic<int> made = 0, inside = 0;
  BatchReader reader(
      [&](const BatchReader::Read&) -> Result<void> {
        ++inside;
        begun.count_down();
        go.wait();
        ++made;
        --inside;
        return make_error(ErrorCode::kIo, "not tried again");
      },
      2, 1, 1000000);
  reader.start(Reads{50});
  begun.wait();
  std::thread other([&] { go.count_down(); });
  reader.cancel();
  EXPECT_EQ(inside, 0);
  EXPECT_EQ(reader.running(), 0U);
  EXPECT_LT(made, 50);
  other.join();
}

TEST(BatchReader, EndsWithReadsStillToBegin) {
  std::latch begun(1), go(1);
  auto reader = std::make_unique<BatchReader>(
      [&](const BatchReader::Read& read) -> Result<void> {
        if (read.number == 0) begun.count_down();
        go.wait();
        return {};
      },
      1, 1, 0);
  reader->start(Reads{50});
  begun.wait();
  std::thread other([&] { go.count_down(); });
  reader.reset();
  other.join();
}

// Batches one after another, waited for in part or not at all. The thread sanitizer watches this one.
TEST(BatchReader, ManyBatchesUnderStress) {
  std::vector<std::vector<int>> memory(2, std::vector<int>(64));
  std::atomic<std::uint32_t> calls = 0;
  int batch = 0;
  BatchReader reader(
      [&](const BatchReader::Read& read) -> Result<void> {
        if (++calls % 7 == 0) return make_error(ErrorCode::kIo, "passing");
        memory[read.group][read.number] = batch;
        return {};
      },
      4, 2, 100);
  std::mt19937 random(1);
  for (int i = 1; i <= 2000; ++i) {
    batch = i;
    const Reads reads{random() % 65, random() % 9};
    reader.start(reads);
    const std::size_t waited = random() % 3;
    for (std::size_t g = 0; g < waited; ++g) {
      ASSERT_TRUE(reader.wait(g).ok());
      for (std::size_t n = 0; n < reads[g]; ++n) ASSERT_EQ(memory[g][n], i);
    }
    reader.cancel();
    memory[1][0] = -1;  // nobody writes any more
  }
}

}  // namespace
}  // namespace sluice::experts

// Records read through a ring: order, faults, and memory that is given back.
#include "experts/ring_reader.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <latch>
#include <random>

#include "base/direct_file.h"
#include "base/output_file.h"
#include "experts/pool.h"
#include "records.h"
#include "support/temp_folder.h"

namespace sluice::experts {
namespace {

class Reading : public testing::Test {
 protected:
  /// A reader over a ring that does as `perform` says; what fails there is read by `read`.
  RingReader& open(FakeRing::Perform perform, ReadSlot read = fill, RecordReader::Options options = {}) {
    auto ring = std::make_unique<FakeRing>(std::move(perform));
    ring_ = ring.get();
    memory_ = AlignedBuffer::create(64 * kSlot, kSlot).value();
    reader_ = std::make_unique<RingReader>(records(std::move(read)), std::move(ring), memory_.bytes(), kSlot,
                                           options);
    return *reader_;
  }
  Read& start(std::int64_t id, Priority priority = Priority::kDemand) {
    Read& read = reads_.emplace_back();
    read.id = id;
    read.slot = memory_.bytes().subspan((reads_.size() - 1) % 64 * kSlot, kSlot);
    reader_->start(read, priority);
    return read;
  }
  AlignedBuffer memory_;
  std::deque<Read> reads_;
  FakeRing* ring_ = nullptr;
  std::unique_ptr<RingReader> reader_;  // last: ends first
};

TEST_F(Reading, MoreThanTheRingHolds) {
  open(FakeRing::well);
  for (std::int64_t id = 0; id < 64; ++id) start(id);
  for (std::size_t i = 0; i < reads_.size(); ++i) {
    ASSERT_TRUE(reader_->wait(reads_[i]).ok());
    EXPECT_TRUE(holds(reads_[i].slot, static_cast<std::int64_t>(i)));
  }
  EXPECT_EQ(reader_->counts().reads, 64U);
  EXPECT_EQ(reader_->counts().retries, 0U);
  EXPECT_EQ(reader_->name(), "io_uring");
}

TEST_F(Reading, WhateverDoesNotComeWholeAndRightIsReadAgain) {
  using Fault = FakeRing::Perform;
  const std::vector<std::pair<const char*, Fault>> faults = {
      {"EIO", [](std::int64_t, std::span<std::byte>) { return std::int64_t{-EIO}; }},
      {"EINTR", [](std::int64_t, std::span<std::byte>) { return std::int64_t{-EINTR}; }},
      {"EAGAIN", [](std::int64_t, std::span<std::byte>) { return std::int64_t{-EAGAIN}; }},
      {"ENOMEM", [](std::int64_t, std::span<std::byte>) { return std::int64_t{-ENOMEM}; }},
      {"EINVAL", [](std::int64_t, std::span<std::byte>) { return std::int64_t{-EINVAL}; }},
      {"end of file", [](std::int64_t, std::span<std::byte>) { return std::int64_t{0}; }},
      {"short", [](std::int64_t id, std::span<std::byte> to) { return FakeRing::well(id, to.first(512)); }},
      {"flipped bit",
       [](std::int64_t id, std::span<std::byte> to) {
         const auto got = FakeRing::well(id, to);
         to[100] ^= std::byte{4};
         return got;
       }},
      {"another record", [](std::int64_t id, std::span<std::byte> to) { return FakeRing::well(id + 1, to); }},
  };
  for (const auto& [name, fault] : faults) {
    reader_.reset();
    reads_.clear();
    std::atomic<int> again = 0;
    open(fault, [&](std::int64_t id, std::span<std::byte> slot) {
      ++again;
      return fill(id, slot);
    });
    Read& read = start(7);
    EXPECT_TRUE(reader_->wait(read).ok()) << name;
    EXPECT_TRUE(holds(read.slot, 7)) << name;
    EXPECT_EQ(again, 1) << name;
  }
}

TEST_F(Reading, WhatStaysWrongIsToldAfterABoundedNumberOfAttempts) {
  std::atomic<int> again = 0;
  open([](std::int64_t, std::span<std::byte>) { return std::int64_t{-EIO}; },
       [&](std::int64_t, std::span<std::byte>) -> Result<void> {
         ++again;
         return make_error(ErrorCode::kIo, "experts.bin: expert 3 of layer 1: input/output error");
       },
       {.retries = 2});
  Read& read = start(3);
  const auto failed = reader_->wait(read);
  ASSERT_FALSE(failed.ok());
  EXPECT_NE(failed.error().message.find("expert 3 of layer 1"), std::string::npos);
  EXPECT_LE(again, 3);
  EXPECT_FALSE(reader_->is_lost(read));
  EXPECT_EQ(reader_->counts().failures, 1U);
}

TEST_F(Reading, MemoryIsReleasedBetweenReads) {
  std::latch go(1);
  open([&](std::int64_t id, std::span<std::byte> to) {
    if (id == 0) go.wait();
    return FakeRing::well(id, to);
  });
  EXPECT_TRUE(reader_->registered());
  for (std::int64_t id = 0; id < 20; ++id) start(id);
  go.count_down();
  reader_->release_memory();  // the fake ring sees that nothing is under way
  EXPECT_FALSE(reader_->registered());
  EXPECT_FALSE(ring_->registered);
  for (Read& read : reads_) EXPECT_TRUE(reader_->wait(read).ok());
  Read& later = start(30);
  EXPECT_TRUE(reader_->wait(later).ok());
}

TEST_F(Reading, ABrokenRingLosesItsSlotsAndThreadsReadOn) {
  open(FakeRing::well);
  ring_->broken = true;
  Read& lost = start(1);
  EXPECT_FALSE(reader_->wait(lost).ok());
  EXPECT_TRUE(reader_->is_lost(lost));
  Read& next = start(2);
  EXPECT_TRUE(reader_->wait(next).ok());
  EXPECT_TRUE(holds(next.slot, 2));
  EXPECT_FALSE(reader_->is_lost(next));
}

TEST_F(Reading, ReadsAheadWaitForWhatIsWanted) {
  std::latch begun(1);
  std::latch go(1);
  std::mutex mutex;
  std::vector<std::int64_t> order;
  open([&](std::int64_t id, std::span<std::byte> to) {
    if (id == 0) {
      begun.count_down();
      go.wait();
    }
    const std::scoped_lock lock(mutex);
    order.push_back(id);
    return FakeRing::well(id, to);
  });
  start(0);
  begun.wait();
  for (std::int64_t id = 10; id < 14; ++id) start(id, Priority::kAhead);
  for (std::int64_t id = 1; id < 8; ++id) start(id);
  go.count_down();
  for (Read& read : reads_) ASSERT_TRUE(reader_->wait(read).ok());
  const auto place = [&](std::int64_t id) { return std::find(order.begin(), order.end(), id); };
  EXPECT_LT(place(5), place(13));
  EXPECT_EQ(order.size(), reads_.size());
}

TEST_F(Reading, EndsWithReadsQueuedAndUnderWay) {
  std::latch go(1);
  open([&](std::int64_t id, std::span<std::byte> to) {
    go.wait();
    return FakeRing::well(id, to);
  });
  for (std::int64_t id = 0; id < 50; ++id) start(id, id % 2 == 0 ? Priority::kDemand : Priority::kAhead);
  go.count_down();
  reader_.reset();
}

/// The system's own ring, over a file of records.
class SystemRing : public testing::Test {
 protected:
  void SetUp() override {
    std::vector<std::byte> all(kRecords * kSlot);
    for (std::int64_t id = 0; id < kRecords; ++id) {
      (void)fill(id, std::span(all).subspan(static_cast<std::size_t>(id) * kSlot, kSlot));
    }
    const auto path = folder_ / "records";
    auto file = OutputFile::open(path, all.size());
    ASSERT_TRUE(file.ok() && (*file)->write_at(0, all).ok() && (*file)->sync().ok());
    file_ = DirectFile::open(path).value();
    if (!open_read_ring(4).ok()) GTEST_SKIP() << open_read_ring(4).error().message;
    if (!file_->is_direct()) GTEST_SKIP() << "no direct reads on this file system";
    source_ = records([this](std::int64_t id, std::span<std::byte> slot) {
      ++read_again_;
      return file_->read_at(static_cast<std::uint64_t>(id) * kSlot, slot);
    });
    source_.place = [this](std::int64_t id) {
      return std::optional<SlotPlace>({file_->descriptor(), static_cast<std::uint64_t>(id) * kSlot});
    };
  }
  static constexpr std::int64_t kRecords = 200;
  test::TempFolder folder_;
  std::unique_ptr<DirectFile> file_;
  SlotSource source_;
  std::atomic<int> read_again_ = 0;
};

// The thread sanitizer watches this one too.
TEST_F(SystemRing, APoolOverItIsRightUnderStress) {
  Pool::Options options;
  options.slots = 24;
  options.slot_bytes = kSlot;
  options.records = kRecords;
  options.tier_bytes = {kSlot};
  options.half_life = 64;
  options.reader.depth = 8;
  const auto pool = Pool::create(options, source_);
  ASSERT_TRUE(pool.ok());
  EXPECT_EQ((*pool)->reader().name(), "io_uring");
  std::mt19937 random(5);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::pair<std::int64_t, std::size_t>> leases;
    for (int i = 0; i < 6; ++i) {
      const auto record = static_cast<std::int64_t>(random() % kRecords);
      const auto leased = (*pool)->lease(record, 1);
      ASSERT_TRUE(leased.ok());
      leases.emplace_back(record, leased->slot);
      (*pool)->prefetch(static_cast<std::int64_t>(random() % kRecords), 0.5);
    }
    if (round == 1000) (*pool)->shrink(16);
    for (const auto& [record, slot] : leases) {
      ASSERT_TRUE((*pool)->wait(slot).ok());
      ASSERT_TRUE(holds(std::span((*pool)->address(slot), kSlot), record));
      (*pool)->release(slot);
    }
    (*pool)->tick();
  }
  EXPECT_EQ((*pool)->slots(), 16U);
  EXPECT_EQ((*pool)->leased(), 0U);
  EXPECT_EQ(read_again_, 0);
}

TEST_F(SystemRing, AFileCutShortIsAnError) {
  Pool::Options options;
  options.slots = 4;
  options.slot_bytes = kSlot;
  options.records = kRecords;
  options.tier_bytes = {kSlot};
  options.half_life = 64;
  const auto pool = Pool::create(options, source_);
  ASSERT_TRUE(pool.ok());
  ASSERT_EQ(truncate((folder_ / "records").c_str(), 100 * kSlot), 0);
  for (const std::int64_t record : {150, 99}) {
    const auto leased = (*pool)->lease(record, 1);
    ASSERT_TRUE(leased.ok());
    EXPECT_EQ((*pool)->wait(leased->slot).ok(), record < 100);
    (*pool)->release(leased->slot);
  }
  EXPECT_EQ((*pool)->leased(), 0U);
}

TEST(MakeReader, SaysWhyThreadsRead) {
  std::string note;
  std::vector<std::byte> memory(kSlot);
  auto reader = make_reader(thread_records(), memory, kSlot, {}, true, note);
  EXPECT_EQ(reader->name(), "threads");
  EXPECT_NE(note.find("no direct reads"), std::string::npos);
  reader = make_reader(records(), memory, kSlot, {}, false, note);
  EXPECT_EQ(reader->name(), "threads");
  EXPECT_EQ(note, "");  // as asked
}

}  // namespace
}  // namespace sluice::experts

// Records in device memory before a host that has all of them: what goes where, and for how long.
#include "experts/device_tier.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "experts/statistics.h"
#include "support/lazy_device.h"

namespace sluice::experts {
namespace {

using backend::Dev;

constexpr std::int64_t kLayers = 3, kExperts = 40;
constexpr spec::RecordLayout kLayout{{64, 32, 32}, spec::Format::kQ4};

std::uint64_t first_word(std::int64_t record) {
  return 0x1234567800000000U + static_cast<std::uint64_t>(record);
}

/// A host whose records last as long as they must and not a moment longer: it has only as many places as one
/// piece needs, and fills them anew.
class Host final : public ExpertProvider {
 public:
  Host(backend::Backend& backend, std::size_t piece) : piece_(piece) {
    memory_ = std::move(backend.allocate_host(piece * bytes_)).value();
  }

  Result<std::unique_ptr<Visit>> visit(const Wanted& wanted) override {
    return std::unique_ptr<Visit>(std::make_unique<HostVisit>(*this, wanted));
  }
  void touched(std::int64_t, std::span<const std::uint32_t> ids, Use) override { touches += ids.size(); }
  [[nodiscard]] std::uint64_t bytes() const override { return memory_->size(); }

  std::vector<std::int64_t> asked;  // records, since the test cleared them
  std::vector<std::uint32_t> leave_out;
  spec::Format format = kLayout.format;
  std::size_t touches = 0;

 private:
  class HostVisit final : public Visit {
   public:
    HostVisit(Host& host, const Wanted& wanted) : host_(host), wanted_(wanted) {
      for (std::uint32_t i = 0; i < wanted.ids.size(); ++i) {
        const bool out = std::count(host.leave_out.begin(), host.leave_out.end(), wanted.ids[i]) > 0;
        (out ? dropped_ : left_).push_back(i);
      }
    }
    ~HostVisit() override { poison(); }
    Result<std::span<const std::uint32_t>> next(bool wait) override {
      poison();
      places_.clear();
      entries_.clear();
      // Every other time nothing is ready.
      if (!wait && host_.piece_ < kExperts && (late_ = !late_)) return std::span<const std::uint32_t>();
      while (!left_.empty() && places_.size() < host_.piece_) {
        const std::uint32_t place = left_.front();
        left_.erase(left_.begin());
        std::byte* at = host_.memory_->address() + places_.size() * host_.bytes_;
        const std::int64_t record = wanted_.layer * kExperts + wanted_.ids[place];
        const std::uint64_t word = first_word(record);
        for (std::size_t i = 0; i < host_.bytes_; i += sizeof word) std::memcpy(at + i, &word, sizeof word);
        host_.asked.push_back(record);
        places_.push_back(place);
        entries_.push_back(backend::ExpertEntry::make(at, host_.format));
      }
      return std::span<const std::uint32_t>(places_);
    }
    [[nodiscard]] std::span<const backend::ExpertEntry> entries() const override { return entries_; }
    [[nodiscard]] bool all_started() const override { return left_.empty(); }
    [[nodiscard]] std::span<const std::uint32_t> dropped() const override { return dropped_; }

   private:
    void poison() { std::memset(host_.memory_->address(), 0xee, host_.memory_->size()); }
    Host& host_;
    Wanted wanted_;
    std::vector<std::uint32_t> left_, dropped_, places_;
    std::vector<backend::ExpertEntry> entries_;
    bool late_ = false;
  };

  std::size_t bytes_ = static_cast<std::size_t>(kLayout.bytes());
  std::size_t piece_;
  std::unique_ptr<backend::Buffer> memory_;
};

class DeviceTierTest : public testing::Test {
 protected:
  void make(std::size_t slots, std::size_t piece = kExperts, bool in_place = true) {
    tier_.reset();
    auto host = std::make_unique<Host>(*backend_, piece);
    host_ = host.get();
    const DeviceTier::Options options{kLayout, kLayers, kExperts, slots * DeviceTier::slot_bytes(kLayout),
                                      in_place};
    auto made = DeviceTier::create(options, *backend_, std::move(host));
    ASSERT_TRUE(made.ok()) << made.error().message;
    tier_ = std::move(made).value();
    ASSERT_EQ(tier_->slots(), std::min<std::size_t>(slots, kLayers * kExperts));
    out_ = std::move(backend_->allocate(kExperts * sizeof(std::uint64_t))).value();
  }

  /// Goes through a visit as the model does, "computing" a word of each record; what the device finds is
  /// looked at only after the visit. The records that the host was asked for.
  std::vector<std::int64_t> want(std::int64_t layer, std::vector<std::uint32_t> ids, Use use = Use::kDecode) {
    std::sort(ids.begin(), ids.end());
    const std::vector<float> weight(ids.size(), 0.5F);
    host_->asked.clear();
    pieces_.clear();
    std::vector<std::uint32_t> seen;
    std::vector<std::uint32_t> dropped;
    backend_->zero(out_->as<std::byte>(), out_->size());
    {
      auto visit = std::move(tier_->visit({layer, ids, weight, use})).value();
      EXPECT_TRUE(visit->asynchronous());
      bool wait = false;
      while (true) {
        const auto places = visit->next(wait);
        EXPECT_TRUE(places.ok());
        if (places->empty() && wait) break;
        wait = places->empty();
        if (!places->empty()) pieces_.push_back(places->size());
        for (std::size_t i = 0; i < places->size(); ++i) {
          // Its last word: a copy under way may have brought the first.
          const Dev<const std::byte> record = visit->entries()[i].record() + (kLayout.bytes() - 8);
          backend_->copy(out_->as<std::byte>((*places)[i] * 8), record, sizeof(std::uint64_t));
          seen.push_back((*places)[i]);
        }
      }
      dropped.assign(visit->dropped().begin(), visit->dropped().end());
    }
    std::vector<std::uint64_t> found(ids.size());
    backend_->download(std::as_writable_bytes(std::span(found)), out_->as<const std::byte>());
    seen.insert(seen.end(), dropped.begin(), dropped.end());
    std::sort(seen.begin(), seen.end());
    std::vector<std::uint32_t> every(ids.size());
    std::iota(every.begin(), every.end(), 0U);
    EXPECT_EQ(seen, every);
    for (std::uint32_t i = 0; i < ids.size(); ++i) {
      const bool out = std::count(dropped.begin(), dropped.end(), i) > 0;
      EXPECT_EQ(found[i], out ? 0 : first_word(layer * kExperts + ids[i])) << "expert " << ids[i];
    }
    return host_->asked;
  }
  using Records = std::vector<std::int64_t>;

  std::unique_ptr<backend::Backend> backend_ = test::lazy_backend(1);
  std::unique_ptr<backend::Buffer> out_;
  std::unique_ptr<DeviceTier> tier_;
  Host* host_ = nullptr;
  std::vector<std::size_t> pieces_;
};

TEST_F(DeviceTierTest, EmptySlotsTakeAnythingAndKeepIt) {
  make(4);
  EXPECT_EQ(want(0, {1, 2, 3, 4}), (Records{1, 2, 3, 4}));
  EXPECT_EQ(want(0, {1, 2, 3, 4}), Records{});
  EXPECT_EQ(pieces_, std::vector<std::size_t>{4});
  const ExpertCounts counts = tier_->counts();
  EXPECT_EQ(counts.device_hits, 4U);
  EXPECT_EQ(counts.hits, 4U);
  EXPECT_EQ(counts.copied, 4U);
  EXPECT_EQ(counts.in_place, 0U);
  EXPECT_EQ(counts.bus_bytes, 4U * static_cast<std::uint64_t>(kLayout.bytes()));
  // The host learns what is wanted.
  EXPECT_EQ(host_->touches, 4U);
}

TEST_F(DeviceTierTest, WhatIsWantedOnceIsReadInPlaceAndDrivesNothingOut) {
  make(2);
  want(0, {1, 2});
  for (std::uint32_t id = 10; id < 30; ++id) want(0, {id});
  EXPECT_EQ(tier_->counts().in_place, 20U);
  EXPECT_EQ(want(0, {1, 2}), Records{});
  // 29 was wanted after neither of them was ...
  want(0, {29});
  EXPECT_EQ(tier_->counts().copied, 2U);
  // ... but after 2, now that 1 alone is.
  want(0, {1});
  want(0, {29});
  EXPECT_EQ(tier_->counts().copied, 3U);
  EXPECT_EQ(want(0, {1, 29}), Records{});
  EXPECT_EQ(want(0, {2}), Records{2});
}

TEST_F(DeviceTierTest, OneThatIsWantedInTurnsIsTakenAtTheSecondTime) {
  make(1);
  want(0, {5});
  EXPECT_EQ(want(1, {7}), Records{kExperts + 7});
  EXPECT_EQ(tier_->counts().in_place, 1U);
  want(1, {7});
  EXPECT_EQ(tier_->counts().copied, 2U);
  EXPECT_EQ(want(1, {7}), Records{});
}

TEST_F(DeviceTierTest, HitsAndRecordsInPlaceComeFirstAndCopiesBehindTheSharedExpert) {
  make(2);
  want(0, {1, 2});
  want(0, {3, 1});
  // 1 is there, 3 takes the place of 2, and 4 is read in place.
  EXPECT_EQ(want(0, {1, 3, 4}), (Records{3, 4}));
  EXPECT_EQ(pieces_, (std::vector<std::size_t>{2, 1}));
}

TEST_F(DeviceTierTest, APrefillLeavesWhatDecodingComesBackTo) {
  make(16);
  std::vector<std::uint32_t> hot(12);
  std::iota(hot.begin(), hot.end(), 0U);
  want(0, hot);
  std::vector<std::uint32_t> all(kExperts);
  std::iota(all.begin(), all.end(), 0U);
  for (std::int64_t layer = 0; layer < kLayers; ++layer) want(layer, all, Use::kPrefill);
  // All but hits were copied, through a quarter of the slots.
  EXPECT_EQ(tier_->counts().in_place, 0U);
  EXPECT_EQ(tier_->counts().copied, 12U + kLayers * kExperts - 12U);
  EXPECT_EQ(want(0, hot), Records{});
}

TEST_F(DeviceTierTest, APrefillFindsSomeOfItsRecordsAgain) {
  make(60);
  std::vector<std::uint32_t> all(kExperts);
  std::iota(all.begin(), all.end(), 0U);
  for (int pass = 0; pass < 2; ++pass) {
    for (std::int64_t layer = 0; layer < kLayers; ++layer) want(layer, all, Use::kPrefill);
  }
  EXPECT_GE(tier_->counts().device_hits, 40U);
}

TEST_F(DeviceTierTest, WithoutReadingInPlaceAllIsCopiedThatFindsASlot) {
  make(2, kExperts, false);
  want(0, {1, 2});
  for (std::uint32_t id = 10; id < 20; ++id) want(0, {id});
  EXPECT_EQ(tier_->counts().in_place, 0U);
  want(0, {1, 2, 3, 4});
  EXPECT_EQ(tier_->counts().in_place, 2U);
}

TEST_F(DeviceTierTest, OtherPrecisionsAreReadInPlaceAndDroppedOnesAreNamed) {
  make(8);
  host_->format = spec::Format::kQ8;  // larger than a slot
  host_->leave_out = {2};
  EXPECT_EQ(want(0, {1, 2, 3}), (Records{1, 3}));
  EXPECT_EQ(tier_->counts().in_place, 2U);
  EXPECT_EQ(tier_->counts().copied, 0U);
}

// Nothing goes before the device has read it, although it runs only when it must and the host overwrites
// each record as soon as it may.
TEST_F(DeviceTierTest, NoRecordGoesBeforeTheDeviceIsDoneWithIt) {
  std::mt19937 random(7);
  for (const std::size_t slots : {1, 2, 5, 20, 200}) {
    for (const std::size_t piece : {std::size_t{1}, std::size_t{3}, std::size_t{kExperts}}) {
      for (const bool in_place : {true, false}) {
        make(slots, piece, in_place);
        for (int step = 0; step < 60; ++step) {
          const bool prefill = random() % 5 == 0;
          std::vector<std::uint32_t> ids;
          for (std::uint32_t id = 0; id < kExperts; ++id) {
            if (random() % 8 < (prefill ? 7U : id % 3)) ids.push_back(id);
          }
          want(static_cast<std::int64_t>(random() % kLayers), ids, prefill ? Use::kPrefill : Use::kDecode);
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

// A visit that ends before its time leaves nothing half done.
TEST_F(DeviceTierTest, AVisitThatIsLeftEarlyLeavesRightRecords) {
  make(3);
  for (std::uint32_t id = 0; id < 20; ++id) {
    const std::vector<std::uint32_t> ids{id, id + 1};
    const std::vector<float> weight(2, 0.5F);
    auto visit = std::move(tier_->visit({0, ids, weight, Use::kDecode})).value();
    if (id % 2 == 0) {
      EXPECT_TRUE(visit->next(id % 4 == 0).ok());
    }
  }
  want(0, {17, 18, 19, 20});
}

TEST_F(DeviceTierTest, NoRoomForARecordIsRefused) {
  const auto refused = DeviceTier::create({kLayout, kLayers, kExperts, 100}, *backend_,
                                          std::make_unique<Host>(*backend_, std::size_t{1}));
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.error().message.find("one record"), std::string::npos) << refused.error().message;
}

}  // namespace
}  // namespace sluice::experts

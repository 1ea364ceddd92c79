// Records whose bytes say which they are, and ways to read them that fail on demand.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>

#include "experts/ring_reader.h"

namespace sluice::experts {

constexpr std::size_t kSlot = 4096;

/// A record is its own number, all over.
inline Result<void> fill(std::int64_t id, std::span<std::byte> slot) {
  for (std::size_t at = 0; at < slot.size(); at += sizeof id) std::memcpy(slot.data() + at, &id, sizeof id);
  return {};
}

inline bool holds(std::span<const std::byte> slot, std::int64_t id) {
  for (std::size_t at = 0; at < slot.size(); at += sizeof id) {
    std::int64_t found = -1;
    std::memcpy(&found, slot.data() + at, sizeof found);
    if (found != id) return false;
  }
  return true;
}

/// Read by `read`, or by a ring where record number n lies at offset n * kSlot of any descriptor.
inline SlotSource records(ReadSlot read = fill) {
  SlotSource source;
  source.read = std::move(read);
  source.place = [](std::int64_t id) {
    return std::optional<SlotPlace>({0, static_cast<std::uint64_t>(id) * kSlot});
  };
  source.check = [](std::int64_t id, std::span<const std::byte> slot) -> Result<void> {
    if (holds(slot, id)) return {};
    return make_error(ErrorCode::kCorrupt, "record {}: wrong checksum", id);
  };
  return source;
}

/// Records that only threads can read.
inline SlotSource thread_records(ReadSlot read = fill) {
  SlotSource source = records(std::move(read));
  source.place = nullptr;
  return source;
}

/// A ring that does its reads when it is waited for, as `perform` says: bytes read or -errno.
class FakeRing final : public ReadRing {
 public:
  using Perform = std::function<std::int64_t(std::int64_t id, std::span<std::byte> to)>;
  explicit FakeRing(Perform perform, std::size_t depth = 4) : perform_(std::move(perform)), depth_(depth) {}

  static std::int64_t well(std::int64_t id, std::span<std::byte> to) {
    (void)fill(id, to);
    return static_cast<std::int64_t>(to.size());
  }

  void read(int, std::uint64_t offset, std::span<std::byte> to, std::uint64_t tag) override {
    queued_.push_back({static_cast<std::int64_t>(offset / kSlot), to, tag});
    EXPECT_LE(queued_.size(), depth_);
  }
  void submit() override {}
  Result<void> wait(std::vector<Ended>& ended) override {
    if (queued_.empty()) {
      std::unique_lock lock(mutex_);
      wake_.wait(lock, [this] { return woken_; });
      woken_ = false;
      return {};
    }
    if (broken) return make_error(ErrorCode::kIo, "ring: broken");
    // The last first: nothing may rely on order.
    for (auto it = queued_.rbegin(); it != queued_.rend(); ++it) {
      ended.push_back({it->tag, perform_(it->id, it->to)});
    }
    queued_.clear();
    return {};
  }
  void wake() override {
    const std::scoped_lock lock(mutex_);
    woken_ = true;
    wake_.notify_all();
  }
  [[nodiscard]] std::size_t depth() const override { return depth_; }
  bool register_memory(std::span<std::byte>, std::size_t) override { return registered = true; }
  void release_memory() override {
    EXPECT_TRUE(queued_.empty());
    registered = false;
  }

  std::atomic<bool> broken = false;
  std::atomic<bool> registered = false;

 private:
  struct Queued {
    std::int64_t id;
    std::span<std::byte> to;
    std::uint64_t tag;
  };
  Perform perform_;
  std::size_t depth_;
  std::vector<Queued> queued_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool woken_ = false;
};

}  // namespace sluice::experts

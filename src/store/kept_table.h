// A small n-gram table held in memory.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "base/result.h"

namespace sluice::store {

/// Tables up to this size stay in memory from the first lookup on, so that a small model's decoding makes no
/// system calls for them.
constexpr std::uint64_t kKeepNgramBelow = std::uint64_t{64} << 20;

/// Thread-safe. What could not be read is not remembered: the next lookup reads again.
class KeptTable {
 public:
  /// The table's bytes; the first call has `read` fill them.
  template <class Read>
  Result<std::span<const std::byte>> get(std::size_t bytes, const Read& read) {
    if (!ready_.load(std::memory_order_acquire)) {
      const std::scoped_lock lock(mutex_);
      if (!ready_.load(std::memory_order_relaxed)) {
        bytes_.resize(bytes);
        SLUICE_TRY(read(std::span<std::byte>(bytes_)));
        ready_.store(true, std::memory_order_release);
      }
    }
    return std::span<const std::byte>(bytes_);
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> ready_ = false;
  std::vector<std::byte> bytes_;
};

}  // namespace sluice::store

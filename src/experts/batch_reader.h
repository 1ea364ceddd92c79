// Many small reads that are known at once: a batch of groups, waited for group by group.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/result.h"

namespace sluice::experts {

struct BatchCounts {
  std::uint64_t reads = 0;    // that succeeded
  std::uint64_t retries = 0;  // after a failure that may pass
  std::uint64_t failures = 0;
};

/// Threads that work through one batch at a time, earlier groups first. A failed read is tried again a
/// bounded number of times. One thread starts, waits and cancels; memory that reads write to may go once the
/// batch is cancelled or every group has been waited for.
class BatchReader {
 public:
  struct Read {
    std::size_t group = 0;
    std::size_t number = 0;  // inside its group
    std::size_t thread = 0;  // who does it
  };
  using Work = std::function<Result<void>(const Read& read)>;

  /// Throws std::system_error when the system has no more threads.
  BatchReader(Work work, std::size_t threads, std::size_t groups, int retries);
  /// Cancels.
  ~BatchReader();
  BatchReader(const BatchReader&) = delete;
  BatchReader& operator=(const BatchReader&) = delete;

  /// Begins a batch with so many reads in each group. The one before has been cancelled or waited for.
  void start(std::span<const std::size_t> reads);
  /// Blocks until a group's reads have all ended; tells the error of the first of them that failed.
  Result<void> wait(std::size_t group);
  /// Drops the reads that have not begun and blocks until the others have ended; then no thread reads.
  void cancel();
  [[nodiscard]] BatchCounts counts() const;
  [[nodiscard]] std::size_t running() const;

 private:
  struct Group {
    std::size_t reads = 0;
    std::size_t begun = 0;
    std::size_t ended = 0;
    std::size_t failed = 0;  // the number of the read that `error` is of
    std::optional<Error> error;
  };

  void work(std::size_t thread);
  void stop();
  /// The next read to begin; kNone without one.
  [[nodiscard]] std::size_t next_group() const;
  Result<void> attempt(const Read& read);
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

  Work work_;
  int retries_;
  mutable std::mutex mutex_;
  std::condition_variable work_ready_, ended_;
  std::vector<Group> groups_;
  std::size_t running_ = 0;
  bool cancelled_ = false;
  bool stop_ = false;
  BatchCounts counts_;
  std::vector<std::thread> threads_;
};

}  // namespace sluice::experts

// Reading expert records into pool slots, many at once, while the engine computes.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "base/result.h"

namespace sluice::experts {

/// Fills `slot` with record `id`, whole and verified. Called from several threads at once.
using ReadSlot = std::function<Result<void>(std::int64_t id, std::span<std::byte> slot)>;

/// What is wanted now goes before what may be wanted soon.
enum class Priority { kDemand, kAhead };

/// One read, owned by who asked for it. Must not move or die between start() and its end.
struct Read {
  std::int64_t id = -1;
  std::span<std::byte> slot;

 private:
  friend class RecordReader;
  enum class State { kIdle, kQueued, kRunning, kDone };
  State state = State::kIdle;
  std::optional<Error> error;
};

struct ReaderCounts {
  std::uint64_t reads = 0;    // records read
  std::uint64_t retries = 0;  // after a failure that may pass
  std::uint64_t failures = 0;
};

/// Threads that read. A failed read is tried again a bounded number of times: an error of the system or a
/// wrong checksum may be a passing one; what still fails is reported to the one who waits for it.
class RecordReader {
 public:
  /// Throws std::system_error when the system has no more threads.
  RecordReader(ReadSlot read, int threads, int retries = 2);
  /// Drops what is queued and waits for what is running.
  ~RecordReader();
  RecordReader(const RecordReader&) = delete;
  RecordReader& operator=(const RecordReader&) = delete;

  void start(Read& read, Priority priority);
  /// A read ahead becomes a wanted one.
  void promote(Read& read);
  /// Takes back a read that has not begun; false when it has.
  bool cancel(Read& read);
  /// Whether it has ended, well or not.
  [[nodiscard]] bool is_done(const Read& read) const;
  /// Blocks until it has.
  Result<void> wait(Read& read);
  [[nodiscard]] ReaderCounts counts() const;

 private:
  void work();
  Read* next();
  Result<void> attempt(const Read& read);

  ReadSlot read_;
  int retries_;
  mutable std::mutex mutex_;
  std::condition_variable work_, done_;
  std::deque<Read*> demand_, ahead_;
  ReaderCounts counts_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace sluice::experts

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
#include <string_view>
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
  /// When it began and ended, seconds of the steady clock; of one that has ended.
  double began = 0, ended = 0;

 private:
  friend class RecordReader;
  enum class State { kIdle, kQueued, kRunning, kDone };
  State state = State::kIdle;
  bool lost = false;
  Priority priority = Priority::kDemand;
  std::optional<Error> error;
};

/// Seconds of the steady clock.
double steady_seconds();

struct ReaderCounts {
  std::uint64_t reads = 0;    // records read
  std::uint64_t retries = 0;  // after a failure that may pass
  std::uint64_t failures = 0;
  double busy_seconds = 0;  // with at least one read under way
};

/// Reads in the background. A failed read is tried again a bounded number of times: an error of the system or
/// a wrong checksum may be a passing one; what still fails is reported to the one who waits for it.
class RecordReader {
 public:
  struct Options {
    int threads = 8;      // that read, or, where the kernel reads, that check what was read
    int retries = 2;      // of one read
    int depth = 32;       // reads under way at once
    int ahead_depth = 2;  // of those that may be in vain: so long a wanted one waits at most
  };

  virtual ~RecordReader() = default;
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
  /// Blocks until one of several has ended; none of them may be idle.
  void wait_any(std::span<Read* const> reads);
  /// Whether something may yet write into the slot of a read that failed: nothing may lie there ever again.
  [[nodiscard]] bool is_lost(const Read& read) const;
  [[nodiscard]] ReaderCounts counts() const;

  /// "io_uring" or "threads".
  [[nodiscard]] virtual std::string_view name() const = 0;
  /// No slot is kept in place for the kernel from now on, so that its memory can be given back.
  virtual void release_memory() {}

 protected:
  RecordReader(ReadSlot read, const Options& options) : read_(std::move(read)), options_(options) {}

  /// Something was queued while the reader may sleep.
  virtual void wake() = 0;
  /// The next read to begin, demand first; null when there is none, or as many as allowed are under way.
  /// mutex_ is held.
  Read* next();
  /// Whether next() would give one.
  [[nodiscard]] bool can_begin() const;
  /// Reads a record to the end, again after failures; `failed` counts an attempt that was made already.
  void read_whole(Read& read, bool failed);
  void finish(Read& read, std::optional<Error> error, std::uint64_t retries);
  void lose(Read& read, const Error& error);
  /// Forgets what is queued; mutex_ is held.
  void drop_queued();

  ReadSlot read_;
  Options options_;
  mutable std::mutex mutex_;
  bool stop_ = false;

 private:
  Result<void> attempt(const Read& read);

  std::condition_variable done_;
  std::deque<Read*> demand_, ahead_;
  int running_ = 0, running_ahead_ = 0;
  double busy_since_ = 0;
  ReaderCounts counts_;
};

/// Threads that read, each one record at a time: for sources and systems where nothing better is.
class ThreadReader final : public RecordReader {
 public:
  /// Throws std::system_error when the system has no more threads.
  ThreadReader(ReadSlot read, const Options& options);
  /// Drops what is queued and waits for what is running.
  ~ThreadReader() override;
  [[nodiscard]] std::string_view name() const override { return "threads"; }

 private:
  void wake() override { work_.notify_one(); }
  void work();
  void join();

  std::condition_variable work_;
  std::vector<std::thread> threads_;
};

}  // namespace sluice::experts

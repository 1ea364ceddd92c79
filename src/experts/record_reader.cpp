#include "experts/record_reader.h"

#include <algorithm>
#include <chrono>
#include <new>

namespace sluice::experts {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

void RecordReader::start(Read& read, Priority priority) {
  {
    const std::scoped_lock lock(mutex_);
    read.state = Read::State::kQueued;
    read.priority = priority;
    read.error.reset();
    (priority == Priority::kDemand ? demand_ : ahead_).push_back(&read);
  }
  wake();
}

void RecordReader::promote(Read& read) {
  {
    const std::scoped_lock lock(mutex_);
    if (std::erase(ahead_, &read) == 0) {
      // It runs: what is wanted does not count among those that may be in vain.
      if (read.state == Read::State::kRunning && read.priority == Priority::kAhead) {
        --running_ahead_;
        read.priority = Priority::kDemand;
      }
      return;
    }
    read.priority = Priority::kDemand;
    demand_.push_back(&read);
  }
  wake();
}

bool RecordReader::cancel(Read& read) {
  const std::scoped_lock lock(mutex_);
  if (std::erase(ahead_, &read) + std::erase(demand_, &read) == 0) return false;
  read.state = Read::State::kIdle;
  return true;
}

bool RecordReader::is_done(const Read& read) const {
  const std::scoped_lock lock(mutex_);
  return read.state == Read::State::kDone;
}

Result<void> RecordReader::wait(Read& read) {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return read.state == Read::State::kDone; });
  if (read.error) return *read.error;
  return {};
}

void RecordReader::wait_any(std::span<Read* const> reads) {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] {
    return std::any_of(reads.begin(), reads.end(),
                       [](const Read* read) { return read->state == Read::State::kDone; });
  });
}

ReaderCounts RecordReader::counts() const {
  const std::scoped_lock lock(mutex_);
  ReaderCounts counts = counts_;
  if (running_ > 0) counts.busy_seconds += now() - busy_since_;
  return counts;
}

bool RecordReader::can_begin() const {
  if (running_ >= options_.depth) return false;
  if (!demand_.empty()) return true;
  // The drive is for what is wanted; while the last of that lands it can begin with something else.
  return !ahead_.empty() && running_ahead_ < options_.ahead_depth && running_ - running_ahead_ <= 1;
}

Read* RecordReader::next() {
  if (!can_begin()) return nullptr;
  std::deque<Read*>& queue = demand_.empty() ? ahead_ : demand_;
  Read* read = queue.front();
  queue.pop_front();
  read->state = Read::State::kRunning;
  if (read->priority == Priority::kAhead) ++running_ahead_;
  if (running_++ == 0) busy_since_ = now();
  return read;
}

void RecordReader::drop_queued() {
  for (auto* queue : {&demand_, &ahead_}) {
    for (Read* read : *queue) read->state = Read::State::kIdle;
    queue->clear();
  }
}

Result<void> RecordReader::attempt(const Read& read) {
  try {
    return read_(read.id, read.slot);
  } catch (const std::bad_alloc&) {
    return make_error(ErrorCode::kOutOfMemory, "expert record {}: no memory to read it", read.id);
  }
}

void RecordReader::read_whole(Read& read, bool failed) {
  Result<void> result = attempt(read);
  std::uint64_t retries = failed ? 1 : 0;
  while (!result.ok() && retries < static_cast<std::uint64_t>(options_.retries)) {
    ++retries;
    result = attempt(read);
  }
  finish(read, result.ok() ? std::optional<Error>() : result.error(), retries);
}

bool RecordReader::is_lost(const Read& read) const {
  const std::scoped_lock lock(mutex_);
  return read.lost;
}

void RecordReader::lose(Read& read, const Error& error) {
  {
    const std::scoped_lock lock(mutex_);
    read.lost = true;
  }
  finish(read, error, 0);
}

void RecordReader::finish(Read& read, std::optional<Error> error, std::uint64_t retries) {
  bool more = false;
  {
    const std::scoped_lock lock(mutex_);
    ++counts_.reads;
    counts_.retries += retries;
    if (error) ++counts_.failures;
    read.error = std::move(error);
    read.state = Read::State::kDone;
    if (read.priority == Priority::kAhead) --running_ahead_;
    if (--running_ == 0) counts_.busy_seconds += now() - busy_since_;
    more = can_begin();
  }
  done_.notify_all();
  if (more) wake();
}

ThreadReader::ThreadReader(ReadSlot read, const Options& options) : RecordReader(std::move(read), options) {
  options_.depth = std::min(options_.depth, options_.threads);
  try {
    for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { work(); });
  } catch (...) {
    join();
    throw;
  }
}

ThreadReader::~ThreadReader() {
  join();
}

void ThreadReader::join() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
    drop_queued();
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadReader::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    Read* read = nullptr;
    work_.wait(lock, [&] { return stop_ || (read = next()) != nullptr; });
    // A read begun as the reader ends is read: someone may wait for it.
    if (read == nullptr) return;
    lock.unlock();
    read_whole(*read, false);
    lock.lock();
  }
}

}  // namespace sluice::experts

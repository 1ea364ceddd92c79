#include "experts/record_reader.h"

#include <algorithm>

namespace sluice::experts {

RecordReader::RecordReader(ReadSlot read, int threads, int retries)
    : read_(std::move(read)), retries_(retries) {
  try {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  } catch (...) {
    {
      const std::scoped_lock lock(mutex_);
      stop_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    throw;
  }
}

RecordReader::~RecordReader() {
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
    demand_.clear();
    ahead_.clear();
  }
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void RecordReader::start(Read& read, Priority priority) {
  {
    const std::scoped_lock lock(mutex_);
    read.state = Read::State::kQueued;
    read.error.reset();
    (priority == Priority::kDemand ? demand_ : ahead_).push_back(&read);
  }
  work_.notify_one();
}

void RecordReader::promote(Read& read) {
  const std::scoped_lock lock(mutex_);
  if (std::erase(ahead_, &read) > 0) demand_.push_back(&read);
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

ReaderCounts RecordReader::counts() const {
  const std::scoped_lock lock(mutex_);
  return counts_;
}

Read* RecordReader::next() {
  std::unique_lock lock(mutex_);
  work_.wait(lock, [this] { return stop_ || !demand_.empty() || !ahead_.empty(); });
  if (stop_) return nullptr;
  std::deque<Read*>& queue = demand_.empty() ? ahead_ : demand_;
  Read* read = queue.front();
  queue.pop_front();
  read->state = Read::State::kRunning;
  return read;
}

Result<void> RecordReader::attempt(const Read& read) {
  try {
    return read_(read.id, read.slot);
  } catch (const std::bad_alloc&) {
    return make_error(ErrorCode::kOutOfMemory, "expert record {}: no memory to read it", read.id);
  }
}

void RecordReader::work() {
  while (Read* read = next()) {
    Result<void> result = attempt(*read);
    std::uint64_t retries = 0;
    while (!result.ok() && retries < static_cast<std::uint64_t>(retries_)) {
      ++retries;
      result = attempt(*read);
    }
    {
      const std::scoped_lock lock(mutex_);
      ++counts_.reads;
      counts_.retries += retries;
      if (!result.ok()) {
        ++counts_.failures;
        read->error = result.error();
      }
      read->state = Read::State::kDone;
    }
    done_.notify_all();
  }
}

}  // namespace sluice::experts

#include "experts/batch_reader.h"

#include <algorithm>
#include <new>

namespace sluice::experts {

BatchReader::BatchReader(Work work, std::size_t threads, std::size_t groups, int retries)
    : work_(std::move(work)), retries_(retries), groups_(groups) {
  try {
    for (std::size_t i = 0; i < threads; ++i) threads_.emplace_back([this, i] { this->work(i); });
  } catch (...) {
    stop();
    throw;
  }
}

BatchReader::~BatchReader() {
  stop();
}

void BatchReader::stop() {
  cancel();
  {
    const std::scoped_lock lock(mutex_);
    stop_ = true;
  }
  work_ready_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void BatchReader::start(std::span<const std::size_t> reads) {
  std::size_t all = 0;
  {
    const std::scoped_lock lock(mutex_);
    for (std::size_t g = 0; g < groups_.size(); ++g) {
      groups_[g] = {};
      groups_[g].reads = reads[g];
      all += reads[g];
    }
    cancelled_ = false;
  }
  if (all >= threads_.size()) {
    work_ready_.notify_all();
  } else {
    for (std::size_t i = 0; i < all; ++i) work_ready_.notify_one();
  }
}

Result<void> BatchReader::wait(std::size_t group) {
  std::unique_lock lock(mutex_);
  const Group& waited = groups_[group];
  ended_.wait(lock, [&] { return waited.ended == waited.reads; });
  if (waited.error) return *waited.error;
  return {};
}

void BatchReader::cancel() {
  std::unique_lock lock(mutex_);
  cancelled_ = true;
  for (Group& group : groups_) group.reads = group.begun;
  ended_.wait(lock, [&] { return running_ == 0; });
}

BatchCounts BatchReader::counts() const {
  const std::scoped_lock lock(mutex_);
  return counts_;
}

std::size_t BatchReader::running() const {
  const std::scoped_lock lock(mutex_);
  return running_;
}

std::size_t BatchReader::next_group() const {
  const auto open = std::find_if(groups_.begin(), groups_.end(),
                                 [](const Group& group) { return group.begun < group.reads; });
  return open == groups_.end() ? kNone : static_cast<std::size_t>(open - groups_.begin());
}

Result<void> BatchReader::attempt(const Read& read) {
  try {
    return work_(read);
  } catch (const std::bad_alloc&) {
    return make_error(ErrorCode::kOutOfMemory, "no memory to read n-gram rows");
  } catch (const std::exception& error) {
    return make_error(ErrorCode::kIo, "reading n-gram rows: {}", error.what());
  }
}

void BatchReader::work(std::size_t thread) {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_ready_.wait(lock, [this] { return stop_ || next_group() != kNone; });
    if (stop_) return;
    const std::size_t g = next_group();
    Group& group = groups_[g];
    const Read read{g, group.begun++, thread};
    ++running_;
    lock.unlock();
    Result<void> result = attempt(read);
    lock.lock();
    for (int i = 0; i < retries_ && !result.ok() && !cancelled_; ++i) {
      ++counts_.retries;
      lock.unlock();
      result = attempt(read);
      lock.lock();
    }
    if (result.ok()) {
      ++counts_.reads;
    } else {
      ++counts_.failures;
      // Whichever ends first: the error told is that of the first in order.
      if (!group.error || read.number < group.failed) {
        group.failed = read.number;
        group.error = result.error();
      }
    }
    ++group.ended;
    --running_;
    if (group.ended == group.reads || running_ == 0) ended_.notify_all();
  }
}

}  // namespace sluice::experts

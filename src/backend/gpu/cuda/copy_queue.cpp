#include "backend/gpu/cuda/copy_queue.h"

namespace sluice::gpu::cuda {
namespace {

constexpr auto kAbout = [] { return "for copies beside the commands"; };

}  // namespace

CopyQueue::~CopyQueue() {
  const Driver& driver = *machine_.driver;
  if (stream_ != nullptr) {
    driver.stream_wait(stream_);
    driver.stream_destroy(stream_);
  }
  if (fence_ != nullptr) driver.event_destroy(fence_);
  if (joined_ != nullptr) driver.event_destroy(joined_);
}

bool CopyQueue::open() {
  if (stream_ != nullptr) return true;
  const Driver& driver = *machine_.driver;
  return machine_.check(driver.event_create(&fence_, kEventDisableTiming), "cuEventCreate", kAbout) &&
         machine_.check(driver.event_create(&joined_, kEventDisableTiming), "cuEventCreate", kAbout) &&
         machine_.check(driver.stream_create(&stream_, kStreamNonBlocking), "cuStreamCreate", kAbout);
}

void CopyQueue::copy(std::uint64_t to, std::uint64_t from, std::uint64_t bytes) {
  if (machine_.failed() || !open()) return;
  const Driver& driver = *machine_.driver;
  if (behind_) {
    if (!machine_.check(driver.event_record(fence_, machine_.stream), "cuEventRecord", kAbout) ||
        !machine_.check(driver.stream_after(stream_, fence_, 0), "cuStreamWaitEvent", kAbout)) {
      return;
    }
    behind_ = false;
  }
  if (!machine_.check(driver.copy(to, from, bytes, stream_), "cuMemcpyAsync",
                      [&] { return fmt::format("copy of {} bytes from {:#x} to {:#x}", bytes, from, to); })) {
    return;
  }
  unjoined_ = true;
  running_ = true;
}

bool CopyQueue::join() {
  if (machine_.failed() || !unjoined_) return false;
  const Driver& driver = *machine_.driver;
  unjoined_ = false;
  return machine_.check(driver.event_record(joined_, stream_), "cuEventRecord", kAbout) &&
         machine_.check(driver.stream_after(machine_.stream, joined_, 0), "cuStreamWaitEvent", kAbout);
}

void CopyQueue::wait() {
  if (machine_.failed() || !running_) return;
  running_ = false;
  unjoined_ = false;
  machine_.check(machine_.driver->stream_wait(stream_), "cuStreamSynchronize", kAbout);
}

}  // namespace sluice::gpu::cuda

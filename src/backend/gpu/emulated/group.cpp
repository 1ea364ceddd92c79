#include "backend/gpu/emulated/group.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace sluice::emulated {
namespace {

constexpr std::uint32_t kAllLanes = ~std::uint32_t{0};

const char* name_of(Meeting meeting) {
  switch (meeting) {
    case Meeting::kBarrier:
      return "barrier";
    case Meeting::kSimdBarrier:
      return "simd_barrier";
    case Meeting::kShuffle:
      return "simd_shuffle";
    case Meeting::kBallot:
      return "simd_ballot";
    case Meeting::kSum:
      return "simd_sum";
    case Meeting::kMax:
      return "simd_max";
    case Meeting::kMmaF16:
    case Meeting::kMmaBf16:
      return "mma";
  }
  return "";
}

[[noreturn]] void fault_apart(const Thread& thread, Meeting meeting, std::uint32_t others, Meeting theirs) {
  throw Fault(fmt::format("is at {} while thread {} waits at {}", name_of(meeting),
                          thread.simd * kLanes + static_cast<std::uint32_t>(std::countr_zero(others)),
                          name_of(theirs)));
}

}  // namespace

void fault_shared(std::size_t at, std::size_t count) {
  throw Fault(fmt::format("access to element {} of a shared array of {}, or not aligned",
                          static_cast<std::int64_t>(at), count));
}

void* Thread::take_shared(std::size_t bytes) const {
  const std::size_t at = (shared_used + 15) / 16 * 16;
  if (at + bytes > kSharedBytes) {
    throw Fault(fmt::format("{} bytes of shared memory, a group has {}", at + bytes, kSharedBytes));
  }
  shared_used = at + bytes;
  // NaN: nobody has written it. The first thread to take it comes before any that writes.
  if (shared_used > runner->poisoned_) {
    std::memset(runner->shared_.data() + runner->poisoned_, 0xff, shared_used - runner->poisoned_);
    runner->poisoned_ = shared_used;
  }
  return runner->shared_.data() + at;
}

void* Thread::take_large(std::size_t bytes) const {
  if (large_used != 0 || bytes > kLargeBytes) {
    throw Fault(fmt::format("{} bytes of large shared memory, taken {}: a group has {}, once", bytes,
                            large_used == 0 ? "once" : "again", kLargeBytes));
  }
  large_used = bytes;
  auto& large = runner->large_;
  large.resize(std::max(large.size(), bytes / 4));
  if (bytes > runner->poisoned_large_) {
    std::memset(large.data(), 0xff, bytes);
    runner->poisoned_large_ = bytes;
  }
  return large.data();
}

GroupRunner::~GroupRunner() {
  stop_ = true;
  for (const auto& worker : all_) own_.switch_to(worker->fiber);
}

void GroupRunner::run(KernelFunction kernel, const void* args, std::uint32_t threads, Grid grid,
                      std::uint64_t group) {
  kernel_ = kernel;
  args_ = args;
  at_barrier_ = 0;
  done_ = 0;
  poisoned_ = poisoned_large_ = 0;
  failed_ = cancelling_ = false;
  const auto x = static_cast<std::uint32_t>(group % grid.x);
  const auto y = static_cast<std::uint32_t>(group / grid.x % grid.y);
  const auto z = static_cast<std::uint32_t>(group / grid.x / grid.y);
  lanes_.resize(threads);
  for (std::uint32_t i = 0; i < threads; ++i) {
    lanes_[i] = {i, i % kLanes, i / kLanes, x, y, z, grid.x, grid.y, this};
  }
  workers_.assign(threads, nullptr);
  simds_.resize(threads / kLanes);
  for (Simd& simd : simds_) {
    simd.ready = kAllLanes;
    simd.arrived = simd.barrier = simd.done = 0;
  }
  while (done_ < threads && !failed_) {
    bool moved = false;
    // The lanes of a SIMD group meet often: they run until they all wait for others, or are done.
    for (std::uint32_t simd = 0; simd < simds_.size() && !failed_; ++simd) {
      if (simds_[simd].ready == 0) continue;
      moved = true;
      go_on(own_, simd, kLanes - 1);
    }
    if (!moved) {
      fault_ = divergence();
      failed_ = true;
    }
  }
  if (!failed_) return;
  cancel();
  throw Fault(
      fmt::format("group ({}, {}, {}){} {}", x, y, z, fault_.starts_with("thread ") ? "," : ":", fault_));
}

/// Threads in the middle of the kernel are unwound.
void GroupRunner::cancel() {
  cancelling_ = true;
  for (std::size_t i = 0; i < workers_.size(); ++i) {
    if (workers_[i] != nullptr) own_.switch_to(workers_[i]->fiber);
  }
}

/// Switches to the next lane of the SIMD group that can run, to the runner itself if there is none.
void GroupRunner::go_on(Fiber& from, std::uint32_t simd, std::uint32_t after) {
  Simd& lanes = simds_[simd];
  if (lanes.ready == 0 || failed_) return from.switch_to(own_);
  const auto turn = std::rotr(lanes.ready, static_cast<int>(after + 1));
  const std::uint32_t lane = (after + 1 + static_cast<std::uint32_t>(std::countr_zero(turn))) % kLanes;
  lanes.ready &= ~(1U << lane);
  const std::uint32_t index = simd * kLanes + lane;
  Worker*& worker = workers_[index];
  if (worker == nullptr) {
    if (free_.empty()) {
      all_.push_back(std::make_unique<Worker>(all_.size(), *this));
      free_.push_back(all_.back().get());
    }
    worker = free_.back();
    worker->thread = index;
    free_.pop_back();
  }
  if (&from != &worker->fiber) from.switch_to(worker->fiber);
}

void GroupRunner::work(Worker& self) {
  while (!stop_) {
    run_thread(self.thread);
    free_.push_back(&self);
    if (cancelling_) {
      self.fiber.switch_to(own_);
    } else {
      go_on(self.fiber, self.thread / kLanes, self.thread % kLanes);
    }
  }
}

void GroupRunner::run_thread(std::uint32_t index) {
  try {
    kernel_(args_, lanes_[index]);
  } catch (const Fault& fault) {
    if (!failed_) fault_ = fmt::format("thread {}: {}", index, fault.what());
    failed_ = true;
  } catch (const Cancelled&) {
  }
  workers_[index] = nullptr;
  simds_[index / kLanes].done |= 1U << index % kLanes;
  ++done_;
}

std::string GroupRunner::divergence() const {
  std::string where;
  std::string last;
  for (const Thread& thread : lanes_) {
    const Simd& simd = simds_[thread.simd];
    const auto in = [&](std::uint32_t set) { return (set >> thread.lane & 1U) != 0; };
    const std::string now =
        in(simd.done)
            ? "has returned"
            : fmt::format("waits at {}", name_of(in(simd.barrier) ? Meeting::kBarrier : simd.meeting));
    if (now == last) continue;
    where += fmt::format("{}thread {} {}", where.empty() ? "" : ", ", thread.index, now);
    last = now;
  }
  return "threads have diverged: from " + where;
}

void GroupRunner::wait(const Thread& thread) {
  go_on(workers_[thread.index]->fiber, thread.simd, thread.lane);
  if (cancelling_) throw Cancelled();
}

void GroupRunner::arrive(const Thread& thread, Meeting meeting) {
  Simd& simd = simds_[thread.simd];
  const std::uint32_t bit = 1U << thread.lane;
  const bool of_group = meeting == Meeting::kBarrier;
  if (simd.arrived != 0 && (of_group || simd.meeting != meeting)) {
    fault_apart(thread, meeting, simd.arrived, simd.meeting);
  }
  if (of_group) {
    simd.barrier |= bit;
    if (++at_barrier_ < lanes_.size()) return wait(thread);
    at_barrier_ = 0;
    for (Simd& each : simds_) {
      each.barrier = 0;
      each.ready = kAllLanes;
    }
  } else {
    if (simd.barrier != 0) fault_apart(thread, meeting, simd.barrier, Meeting::kBarrier);
    simd.meeting = meeting;
    simd.arrived |= bit;
    if (simd.arrived != kAllLanes) return wait(thread);
    simd.arrived = 0;
    finish_meeting(simd);
    simd.ready = kAllLanes;
  }
  simd.ready &= ~bit;
}

void meet(const Thread& thread, Meeting meeting) {
  thread.runner->arrive(thread, meeting);
}

std::uint32_t meet(const Thread& thread, Meeting meeting, std::uint32_t value, std::uint32_t from) {
  Simd& simd = thread.runner->simds_[thread.simd];
  simd.value[thread.lane] = value;
  simd.from[thread.lane] = from;
  thread.runner->arrive(thread, meeting);
  return simd.value[thread.lane];
}

void meet(const Thread& thread, Meeting meeting, const MmaIn& in) {
  thread.runner->simds_[thread.simd].mma[thread.lane] = in;
  thread.runner->arrive(thread, meeting);
}

}  // namespace sluice::emulated

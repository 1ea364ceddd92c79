#include "base/threads.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <set>
#include <string>

namespace sluice {
namespace {

// Long enough to bridge the gap between two operations of a step; then the core is offered to others,
// who may be the rest of the team when there are more threads than cores; then the thread sleeps.
constexpr int kSpins = 2000;
constexpr int kYields = 200;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Processors' worth of time that a container may use, rounded up; absent without a limit.
std::optional<int> cgroup_cpus() {
  double quota = -1;
  double period = 0;
  std::string text;
  if (std::ifstream v2("/sys/fs/cgroup/cpu.max"); v2 >> text >> period) {
    if (text == "max") return std::nullopt;
    quota = std::atof(text.c_str());
  } else {
    std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_quota_us") >> quota;
    std::ifstream("/sys/fs/cgroup/cpu/cpu.cfs_period_us") >> period;
  }
  if (quota <= 0 || period <= 0) return std::nullopt;
  return static_cast<int>(std::ceil(quota / period));
}

}  // namespace

ThreadTeam::ThreadTeam(int threads) {
  const int extra = std::max(threads, 1) - 1;
  workers_.reserve(static_cast<std::size_t>(extra));
  try {
    for (int i = 0; i < extra; ++i) {
      workers_.emplace_back([this, i] { work(static_cast<std::size_t>(i) + 1); });
    }
  } catch (...) {
    stop();
    throw;
  }
}

ThreadTeam::~ThreadTeam() {
  stop();
}

void ThreadTeam::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_.store(true);
    epoch_.fetch_add(1);
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void ThreadTeam::run(Job job, const void* context) noexcept {
  job_ = job;
  context_ = context;
  pending_.store(workers_.size(), std::memory_order_relaxed);
  epoch_.fetch_add(1);
  // A worker that is about to sleep re-checks the epoch under the mutex, so none misses the wake-up.
  if (sleepers_.load() > 0) {
    { const std::lock_guard lock(mutex_); }
    wake_.notify_all();
  }
  job(context, 0);
  for (int spins = 0; pending_.load(std::memory_order_acquire) != 0; ++spins) {
    // With more threads than cores the workers need this core to finish.
    if (spins < kSpins) {
      pause();
    } else {
      std::this_thread::yield();
    }
  }
}

void ThreadTeam::work(std::size_t thread) noexcept {
  std::size_t seen = 0;
  for (;;) {
    for (int spins = 0; spins < kSpins + kYields && epoch_.load(std::memory_order_acquire) == seen; ++spins) {
      if (spins < kSpins) {
        pause();
      } else {
        std::this_thread::yield();
      }
    }
    if (epoch_.load() == seen) {
      std::unique_lock lock(mutex_);
      sleepers_.fetch_add(1);
      wake_.wait(lock, [&] { return epoch_.load() != seen; });
      sleepers_.fetch_sub(1);
    }
    // Regions do not overlap: the epoch moves on only after every worker reported in.
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    job_(context_, thread);
    pending_.fetch_sub(1, std::memory_order_release);
  }
}

int ThreadTeam::default_size() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) {
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  }
  std::set<std::string> cores;
  int allowed = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &set)) continue;
    ++allowed;
    std::ifstream siblings("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                           "/topology/thread_siblings_list");
    std::string line;
    if (std::getline(siblings, line)) cores.insert(line);
  }
  const int physical = cores.empty() ? allowed : static_cast<int>(cores.size());
  return std::clamp(physical, 1, std::max(1, cgroup_cpus().value_or(physical)));
}

}  // namespace sluice

// A team of persistent worker threads that run one function together, many times a step.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <thread>
#include <vector>

namespace sluice {

/// Splits index ranges over a fixed number of threads, the caller being one of them.
/// One parallel region runs at a time; the team belongs to one caller thread.
class ThreadTeam {
 public:
  /// `threads` of 1 runs everything on the caller. Throws std::system_error when the system has no more
  /// threads.
  explicit ThreadTeam(int threads);
  ~ThreadTeam();
  ThreadTeam(const ThreadTeam&) = delete;
  ThreadTeam& operator=(const ThreadTeam&) = delete;

  [[nodiscard]] int size() const { return static_cast<int>(workers_.size()) + 1; }

  /// Calls fn(thread, begin, end) with [0, count) split into contiguous parts, at most one a thread and
  /// none smaller than `grain` (except when count is). How it is split never changes what is computed
  /// for an index. fn must not throw.
  template <class Fn>
  void parallel_for(std::size_t count, std::size_t grain, const Fn& fn) {
    if (count == 0) return;
    const std::size_t most = grain == 0 ? count : (count + grain - 1) / grain;
    const std::size_t parts =
        most < static_cast<std::size_t>(size()) ? most : static_cast<std::size_t>(size());
    if (parts <= 1) {
      fn(0, std::size_t{0}, count);
      return;
    }
    const auto part = [&fn, count, parts](std::size_t thread) {
      if (thread >= parts) return;
      fn(static_cast<int>(thread), count * thread / parts, count * (thread + 1) / parts);
    };
    // A plain function and its context: nothing is allocated inside a step.
    run([](const void* context,
           std::size_t thread) { (*static_cast<const decltype(part)*>(context))(thread); },
        &part);
  }

  /// One thread for each physical core this process may run on, within its container's share of time.
  static int default_size();

 private:
  using Job = void (*)(const void* context, std::size_t thread);
  void run(Job job, const void* context) noexcept;
  void work(std::size_t thread) noexcept;
  void stop();

  std::vector<std::thread> workers_;
  Job job_ = nullptr;
  const void* context_ = nullptr;
  std::atomic<std::size_t> epoch_{0};
  std::atomic<std::size_t> pending_{0};
  std::atomic<bool> stop_{false};
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace sluice

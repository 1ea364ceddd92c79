// One function on several threads for a while: loading, packing, downloads. A step's work has ThreadTeam.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <mutex>
#include <new>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "base/result.h"

namespace sluice {

/// Calls work(t) with t = 0 on the caller and t = 1 to threads - 1 on threads of their own, and returns when
/// all have. Where the system has no more threads, those there are must do: work takes its tasks from a
/// common list. work must not throw.
template <class Work>
void work_together(std::size_t threads, const Work& work) {
  std::vector<std::thread> others;
  try {
    others.reserve(threads);
    for (std::size_t t = 1; t < threads; ++t) others.emplace_back([&work, t] { work(t); });
  } catch (const std::exception&) {
    // No more threads, or no memory for them.
  }
  work(std::size_t{0});
  for (std::thread& thread : others) thread.join();
}

/// Calls task(i) for every i below `count` on `threads` threads, in ascending order as far as they allow,
/// until one fails; returns the first failure that came. done(n), on the caller's thread, says how many have
/// ended, now and then. `what` names the whole where memory runs out.
template <class Task, class Done>
Result<void> run_tasks(std::size_t count, std::size_t threads, std::string_view what, const Task& task,
                       const Done& done) {
  std::atomic<std::size_t> next{0};
  std::atomic<std::size_t> ended{0};
  std::atomic<bool> failed{false};
  std::optional<Error> error;
  std::mutex mutex;
  const auto fail = [&](Error found) {
    const std::scoped_lock lock(mutex);
    if (!error) error = std::move(found);
    failed = true;
  };
  work_together(threads < count ? threads : count, [&](std::size_t thread) {
    for (std::size_t i = next++; i < count && !failed; i = next++) {
      try {
        if (Result<void> result = task(i); !result.ok()) fail(result.error());
      } catch (const std::bad_alloc&) {
        fail(make_error(ErrorCode::kOutOfMemory, "{}: out of memory", what));
      }
      const std::size_t now = ++ended;
      if (thread == 0) done(now);
    }
  });
  if (error) return *error;
  done(count);
  return {};
}

template <class Task>
Result<void> run_tasks(std::size_t count, std::size_t threads, std::string_view what, const Task& task) {
  return run_tasks(count, threads, what, task, [](std::size_t) {});
}

}  // namespace sluice

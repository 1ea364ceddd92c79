#include "base/work_together.h"

#include <gtest/gtest.h>

#include <new>
#include <numeric>

namespace sluice {
namespace {

TEST(RunTasks, RunsEveryTaskOnceAndSaysWhenAllHaveEnded) {
  for (const std::size_t threads : {1U, 2U, 7U}) {
    std::vector<std::atomic<int>> runs(100);
    std::size_t last = 0;
    const auto result = run_tasks(
        runs.size(), threads, "testing",
        [&](std::size_t i) -> Result<void> {
          ++runs[i];
          return {};
        },
        [&](std::size_t done) { last = done; });
    EXPECT_TRUE(result.ok());
    EXPECT_EQ(last, runs.size());
    for (const auto& n : runs) EXPECT_EQ(n, 1);
  }
}

TEST(RunTasks, AFailureEndsItAndIsReturned) {
  std::atomic<std::size_t> begun{0};
  const auto result = run_tasks(1000, 1, "testing", [&](std::size_t i) -> Result<void> {
    ++begun;
    if (i == 4) return make_error(ErrorCode::kIo, "task {} failed", i);
    return {};
  });
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().message, "task 4 failed");
  EXPECT_EQ(begun, 5U);
}

TEST(RunTasks, MemoryThatRunsOutIsAnErrorWithTheNameOfTheWhole) {
  for (const std::size_t threads : {1U, 3U}) {
    const auto result =
        run_tasks(5, threads, "testing", [](std::size_t) -> Result<void> { throw std::bad_alloc(); });
    ASSERT_FALSE(result.ok());
    EXPECT_EQ(result.error().code, ErrorCode::kOutOfMemory);
    EXPECT_EQ(result.error().message, "testing: out of memory");
  }
}

TEST(RunTasks, NothingToDoIsDone) {
  EXPECT_TRUE(run_tasks(0, 4, "testing", [](std::size_t) -> Result<void> { return {}; }).ok());
}

TEST(WorkTogether, GivesEachThreadItsNumberTheCallerNought) {
  std::vector<std::atomic<int>> seen(4);
  const auto caller = std::this_thread::get_id();
  work_together(4, [&](std::size_t t) {
    ++seen[t];
    EXPECT_EQ(t == 0, std::this_thread::get_id() == caller);
  });
  for (const auto& n : seen) EXPECT_EQ(n, 1);
}

}  // namespace
}  // namespace sluice

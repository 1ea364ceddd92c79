#include "base/threads.h"

#include <gtest/gtest.h>

#include <numeric>

namespace sluice {
namespace {

TEST(ThreadTeam, VisitsEveryIndexOnceWhateverTheTeam) {
  for (const int threads : {1, 2, 3, 7}) {
    ThreadTeam team(threads);
    for (const std::size_t count : {0UL, 1UL, 2UL, 6UL, 1000UL}) {
      std::vector<int> hits(count, 0);
      team.parallel_for(count, 1, [&](int, std::size_t begin, std::size_t end) {
        for (std::size_t i = begin; i < end; ++i) ++hits[i];
      });
      EXPECT_EQ(std::count(hits.begin(), hits.end(), 1), static_cast<std::ptrdiff_t>(count));
    }
  }
}

TEST(ThreadTeam, SurvivesManyRegionsInARow) {
  ThreadTeam team(4);
  std::vector<std::uint64_t> sums(4, 0);
  for (int round = 0; round < 20000; ++round) {
    team.parallel_for(4, 1, [&](int, std::size_t begin, std::size_t end) {
      for (std::size_t i = begin; i < end; ++i) sums[i] += i;
    });
  }
  EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), std::uint64_t{0}), 20000U * 6U);
}

TEST(ThreadTeam, SmallWorkStaysOnTheCaller) {
  ThreadTeam team(4);
  const auto caller = std::this_thread::get_id();
  team.parallel_for(10, 100, [&](int thread, std::size_t, std::size_t) {
    EXPECT_EQ(thread, 0);
    EXPECT_EQ(std::this_thread::get_id(), caller);
  });
}

}  // namespace
}  // namespace sluice

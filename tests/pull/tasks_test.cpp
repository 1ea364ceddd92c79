#include "pack/tasks.h"

#include <gtest/gtest.h>

namespace sluice::pack {
namespace {

std::size_t at_once(const std::vector<std::vector<std::size_t>>& files) {
  std::vector<Task> tasks;
  for (const auto& some : files) tasks.push_back({TaskKind::kDense, 0, 1, some});
  return files_at_once(tasks);
}

TEST(FilesAtOnce, OneWhereNoTaskReadsTwo) {
  EXPECT_EQ(at_once({}), 0U);
  EXPECT_EQ(at_once({{}}), 0U);
  EXPECT_EQ(at_once({{0}, {0}, {1}, {5}}), 1U);
}

TEST(FilesAtOnce, FilesHeldForALaterOneCount) {
  EXPECT_EQ(at_once({{0}, {0, 1}, {1, 2}, {2}}), 2U);
  // 3 is held while 4, 5 and 6 come and go, until 7 is there.
  EXPECT_EQ(at_once({{3}, {4}, {5}, {6}, {3, 7}, {8}}), 2U);
  EXPECT_EQ(at_once({{3}, {4}, {5}, {4, 6}, {3, 7}, {8}}), 3U);
  EXPECT_EQ(at_once({{0, 9}, {1, 9}, {2, 9}}), 4U);
  EXPECT_EQ(at_once({{0, 1, 2, 3}}), 4U);
}

TEST(FilesAtOnce, AFileUsedByNoFurtherTaskIsGone) {
  EXPECT_EQ(at_once({{0, 1}, {2, 3}, {4, 5}}), 2U);
}

}  // namespace
}  // namespace sluice::pack

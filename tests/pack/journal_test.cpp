// The record of finished work.
#include "pack/journal.h"

#include <gtest/gtest.h>

#include <fstream>

#include "support/temp_folder.h"

namespace sluice::pack {
namespace {

class JournalTest : public testing::Test {
 protected:
  std::string text() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  void write(const std::string& content) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << content;
  }
  test::TempFolder folder_;
  const std::filesystem::path path_ = folder_ / "journal";
};

TEST_F(JournalTest, RemembersFinishedTasks) {
  {
    auto journal = Journal::open(path_, 1);
    ASSERT_TRUE(journal.ok());
    EXPECT_FALSE(journal->resumed());
    ASSERT_TRUE(journal->add({{TaskKind::kRecord, 7, {1, 2}}, {TaskKind::kDense, 0, {3}}}).ok());
  }
  auto journal = Journal::open(path_, 1);
  ASSERT_TRUE(journal.ok());
  EXPECT_TRUE(journal->resumed());
  EXPECT_FALSE(journal->committing());
  ASSERT_NE(journal->find(TaskKind::kRecord, 7), nullptr);
  EXPECT_EQ(*journal->find(TaskKind::kRecord, 7), (TaskSums{1, 2}));
  EXPECT_EQ(journal->find(TaskKind::kNgram, 7), nullptr);
  ASSERT_TRUE(journal->add_commit().ok());
  EXPECT_TRUE(Journal::open(path_, 1)->committing());
}

TEST_F(JournalTest, OtherWorkStartsAnew) {
  ASSERT_TRUE(Journal::open(path_, 1)->add({{TaskKind::kRecord, 7, {1}}}).ok());
  auto journal = Journal::open(path_, 2);
  EXPECT_FALSE(journal->resumed());
  EXPECT_EQ(journal->find(TaskKind::kRecord, 7), nullptr);
}

TEST_F(JournalTest, ALineCutOrChangedEndsWhatIsBelieved) {
  {
    auto journal = Journal::open(path_, 1);
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(journal->add({{TaskKind::kNgram, i, {9}}}).ok());
  }
  const std::string whole = text();
  for (std::size_t keep = whole.find('\n') + 1; keep < whole.size(); ++keep) {
    write(whole.substr(0, keep));
    auto journal = Journal::open(path_, 1);
    ASSERT_TRUE(journal.ok());
    const auto lines = std::count(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(keep), '\n') - 1;
    for (int i = 0; i < 5; ++i) EXPECT_EQ(journal->find(TaskKind::kNgram, i) != nullptr, i < lines) << keep;
    // It goes on behind the last whole line.
    ASSERT_TRUE(journal->add({{TaskKind::kNgram, 99, {1}}}).ok());
    EXPECT_NE(Journal::open(path_, 1)->find(TaskKind::kNgram, 99), nullptr);
  }
  std::string changed = whole;
  changed[whole.find("n 2") + 2] = '4';
  write(changed);
  auto journal = Journal::open(path_, 1);
  EXPECT_NE(journal->find(TaskKind::kNgram, 1), nullptr);
  EXPECT_EQ(journal->find(TaskKind::kNgram, 2), nullptr);
  EXPECT_EQ(journal->find(TaskKind::kNgram, 3), nullptr);
}

TEST_F(JournalTest, GarbageStartsAnew) {
  for (const char* garbage : {"", "\n\n\n", "pack", "not a journal at all\n", "\xff\xfe"}) {
    write(garbage);
    auto journal = Journal::open(path_, 1);
    ASSERT_TRUE(journal.ok());
    EXPECT_FALSE(journal->resumed());
  }
}

}  // namespace
}  // namespace sluice::pack

// Reads past the page cache, and through it where they cannot be.
#include "base/direct_file.h"

#include <gtest/gtest.h>

#include "base/buffer.h"
#include "base/whole_blocks.h"
#include "support/temp_folder.h"

namespace sluice {
namespace {

constexpr std::size_t kBlock = DirectFile::kAlignment;

class DirectFileTest : public testing::Test {
 protected:
  void SetUp() override {
    for (std::size_t i = 0; i < 5 * kBlock + 1; ++i) content_ += static_cast<char>(i * 31 + i / kBlock);
    auto opened = DirectFile::open(folder_.write("file", content_));
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    file_ = std::move(opened).value();
    auto memory = AlignedBuffer::create(8 * kBlock, kBlock);
    ASSERT_TRUE(memory.ok());
    memory_ = std::move(memory).value();
  }
  void reads(std::uint64_t offset, std::span<std::byte> to) {
    const auto read = file_->read_at(offset, to);
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(to.data()), to.size()),
              content_.substr(offset, to.size()));
  }
  test::TempFolder folder_;
  std::string content_;
  std::unique_ptr<DirectFile> file_;
  AlignedBuffer memory_;
};

TEST_F(DirectFileTest, GivesTheFilesBytesWhateverTheAlignment) {
  reads(0, memory_.bytes().first(kBlock));
  reads(2 * kBlock, memory_.bytes().first(3 * kBlock));
  reads(1, memory_.bytes().first(kBlock));            // offset
  reads(kBlock, memory_.bytes().first(100));          // length
  reads(kBlock, memory_.bytes().subspan(1, kBlock));  // memory
  reads(5 * kBlock, memory_.bytes().first(1));        // the last byte
}

TEST_F(DirectFileTest, PastTheEndIsAnErrorNotAShortRead) {
  const auto read = file_->read_at(4 * kBlock, memory_.bytes().first(2 * kBlock));
  ASSERT_FALSE(read.ok());
  EXPECT_EQ(read.error().code, ErrorCode::kCorrupt);
}

TEST_F(DirectFileTest, AFileCutWhileOpenIsAnError) {
  std::filesystem::resize_file(folder_ / "file", kBlock + 7);
  EXPECT_FALSE(file_->read_at(0, memory_.bytes().first(2 * kBlock)).ok());
  EXPECT_FALSE(file_->read_at(2 * kBlock, memory_.bytes().first(kBlock)).ok());
}

TEST_F(DirectFileTest, WholeBlocksGiveAnyRange) {
  const auto blocks = WholeBlocks::open(folder_ / "file");
  ASSERT_TRUE(blocks.ok());
  EXPECT_EQ((*blocks)->size(), content_.size());
  for (const std::uint64_t offset :
       {0U, 1U, 4095U, 4096U, 4097U, 5U * 4096U - 1, 5U * 4096U, 5U * 4096U + 1}) {
    for (const std::size_t length : {0U, 1U, 2U, 300U, 4096U, 4097U, 3U * 4096U + 2, 5U * 4096U + 1}) {
      const auto to = memory_.bytes().subspan(3, length);
      const auto read = (*blocks)->read_at(offset, to);
      ASSERT_EQ(read.ok(), offset + length <= content_.size()) << offset << " " << length;
      if (!read.ok()) continue;
      EXPECT_EQ(std::string(reinterpret_cast<const char*>(to.data()), length),
                content_.substr(offset, length));
    }
  }
}

// Fault 52: the mode that is in use, not the one that was asked for.
TEST_F(DirectFileTest, FilesThatTakeNoDirectReadsAreReadThroughTheCacheAndSaySo) {
  // /proc is such a file system everywhere; its files give no size, hence nothing to read but the mode.
  const auto opened = DirectFile::open("/proc/self/cmdline");
  ASSERT_TRUE(opened.ok()) << opened.error().message;
  EXPECT_FALSE((*opened)->is_direct());
}

}  // namespace
}  // namespace sluice

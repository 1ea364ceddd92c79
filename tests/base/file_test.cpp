#include "base/file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>

namespace sluice {
namespace {

namespace fs = std::filesystem;

class FileTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("sluice file täst " + std::to_string(::getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  fs::path folder_;
};

TEST_F(FileTest, ReadsFromAPathWithSpacesAndThroughASymlink) {
  const auto path = write("wörter und mehr.bin", "0123456789");
  fs::create_symlink(path, folder_ / "link");
  const auto file = std::move(open_file(folder_ / "link")).value();
  std::string text(4, ' ');
  ASSERT_TRUE(file->read_at(3, std::as_writable_bytes(std::span(text))).ok());
  EXPECT_EQ(text, "3456");
}

TEST_F(FileTest, ReadingPastTheEndIsAnErrorWithBothSizes) {
  const auto file = std::move(open_file(write("a", "0123456789"))).value();
  std::string text(4, ' ');
  const auto result = file->read_at(8, std::as_writable_bytes(std::span(text)));
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, ErrorCode::kCorrupt);
  EXPECT_NE(result.error().message.find("4 bytes at offset 8 needed, the file has 10 bytes"),
            std::string::npos);
  EXPECT_FALSE(file->read_at(UINT64_MAX - 1, std::as_writable_bytes(std::span(text))).ok());
}

TEST_F(FileTest, AFileThatShrinksWhileOpenIsAnErrorNotStaleBytes) {
  const auto path = write("a", "0123456789");
  const auto file = std::move(open_file(path)).value();
  fs::resize_file(path, 5);
  std::string text(8, ' ');
  EXPECT_EQ(file->read_at(0, std::as_writable_bytes(std::span(text))).error().code, ErrorCode::kCorrupt);
}

TEST_F(FileTest, OnlyRegularFilesOpen) {
  EXPECT_EQ(open_file(folder_ / "none").error().code, ErrorCode::kNotFound);
  EXPECT_FALSE(open_file(folder_).ok());
  ASSERT_EQ(::mkfifo((folder_ / "pipe").c_str(), 0600), 0);
  EXPECT_FALSE(open_file(folder_ / "pipe").ok());
}

TEST_F(FileTest, TextFilesAreBounded) {
  EXPECT_EQ(read_text_file(write("t", "hello"), 5).value(), "hello");
  EXPECT_EQ(read_text_file(write("t", "hello!"), 5).error().code, ErrorCode::kLimit);
}

}  // namespace
}  // namespace sluice

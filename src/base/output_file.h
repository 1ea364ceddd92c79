// Files being written: one replaced as a whole, and one filled in any order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace sluice {

/// A file under a temporary name beside its final one; removed again unless it was committed.
class PartFile {
 public:
  explicit PartFile(std::filesystem::path final_path) : final_(std::move(final_path)) {}
  ~PartFile();
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  Result<void> create();
  Result<void> write(std::span<const std::byte> bytes);
  /// Makes the data durable, then visible, then the name durable.
  Result<void> commit();

 private:
  [[nodiscard]] Error failed(std::string_view doing) const;

  std::filesystem::path final_, temporary_;
  int fd_ = -1;
  bool created_ = false;
};

/// Writes `text` as a whole: afterwards the file holds either all of it or what it held before.
Result<void> write_text_file(const std::filesystem::path& path, std::string_view text);

/// A file of known size filled by positioned writes, from several threads at once.
class OutputFile {
 public:
  /// Opens or creates it, at `bytes` length, with its disk space reserved where the file system can do that:
  /// a full disk is found now. What an existing file of that name holds stays.
  /// A `sparse` one reserves nothing, and bytes of a new file that are written as zero take no space.
  static Result<std::unique_ptr<OutputFile>> open(const std::filesystem::path& path, std::uint64_t bytes,
                                                  bool sparse = false);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  /// Where the system can do that, the bytes start on their way to the disk at once, so that sync() has
  /// little left to wait for.
  Result<void> write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  /// Returns when everything written so far is on the disk.
  Result<void> sync();
  [[nodiscard]] std::uint64_t size() const { return size_; }

 private:
  OutputFile(int fd, std::uint64_t size, bool sparse, std::string name)
      : fd_(fd), size_(size), sparse_(sparse), name_(std::move(name)) {}

  int fd_;
  std::uint64_t size_;
  bool sparse_;
  std::string name_;
};

/// Makes the names in a folder durable. Some file systems cannot; that is no error.
void sync_folder(const std::filesystem::path& folder);

/// Bytes that may still be written to the file system of `folder` (or of the nearest folder above that
/// exists).
Result<std::uint64_t> free_space(const std::filesystem::path& folder);

}  // namespace sluice

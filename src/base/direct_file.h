// A file read past the page cache, where the system allows it.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "base/file.h"
#include "base/result.h"

namespace sluice {

/// Whole, aligned blocks go straight from the drive into the caller's memory. File systems that refuse direct
/// reads (tmpfs, some network ones) are read through the cache instead, and so is any part that is not
/// aligned: is_direct() tells which mode is really in use.
class DirectFile final : public File {
 public:
  static constexpr std::size_t kAlignment = 4096;  // of offset, length and memory

  static Result<std::unique_ptr<DirectFile>> open(const std::filesystem::path& path);
  ~DirectFile() override;
  DirectFile(const DirectFile&) = delete;
  DirectFile& operator=(const DirectFile&) = delete;

  [[nodiscard]] std::uint64_t size() const override { return buffered_->size(); }
  [[nodiscard]] const std::string& name() const override { return buffered_->name(); }
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> to) const override;
  [[nodiscard]] bool is_direct() const { return direct_; }
  /// For reads that others do, of whole aligned blocks; -1 where there are no direct ones.
  [[nodiscard]] int descriptor() const { return fd_; }

 private:
  DirectFile(std::unique_ptr<File> buffered, int fd)
      : buffered_(std::move(buffered)), fd_(fd), direct_(fd >= 0) {}

  std::unique_ptr<File> buffered_;
  int fd_;  // opened with O_DIRECT; -1: not possible
  mutable std::atomic<bool> direct_;
};

}  // namespace sluice

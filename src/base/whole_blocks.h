// A file of which any range can be read past the page cache.
#pragma once

#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "base/direct_file.h"
#include "base/file.h"
#include "base/result.h"

namespace sluice {

/// For small reads at places that nobody comes back to: each takes the whole blocks around its range, so that
/// the system can give them directly (DirectFile) and keeps nothing. The last, partial block of a file is
/// read through the cache.
class WholeBlocks final : public File {
 public:
  static Result<std::unique_ptr<File>> open(const std::filesystem::path& path);

  [[nodiscard]] std::uint64_t size() const override { return file_->size(); }
  [[nodiscard]] const std::string& name() const override { return file_->name(); }
  Result<void> read_at(std::uint64_t offset, std::span<std::byte> to) const override;

 private:
  explicit WholeBlocks(std::unique_ptr<DirectFile> file) : file_(std::move(file)) {}

  std::unique_ptr<DirectFile> file_;
};

}  // namespace sluice

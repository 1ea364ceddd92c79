// Files opened for positioned reads. An interface, so that tests can inject faults behind it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"

namespace sluice {

/// A file opened read-only. Reads are positioned and may come from several threads at once.
class File {
 public:
  virtual ~File() = default;

  /// Size in bytes when the file was opened.
  [[nodiscard]] virtual std::uint64_t size() const = 0;

  /// When it last changed, by the later of its two times (content; anything: copies that keep the first have
  /// another second one), in nanoseconds since the epoch; 0: not known.
  [[nodiscard]] virtual std::int64_t modified() const { return 0; }

  /// The path as the user gave it, for messages.
  [[nodiscard]] virtual const std::string& name() const = 0;

  /// Fills `to` from `offset`. Anything less is an error (kCorrupt past the end, kIo from the system):
  /// the caller never sees stale or partial bytes as success.
  virtual Result<void> read_at(std::uint64_t offset, std::span<std::byte> to) const = 0;
};

/// Opens a regular file through the operating system.
Result<std::unique_ptr<File>> open_file(const std::filesystem::path& path);

/// Reads a whole text file; refuses one larger than `limit` bytes.
Result<std::string> read_text_file(const std::filesystem::path& path, std::uint64_t limit);

}  // namespace sluice

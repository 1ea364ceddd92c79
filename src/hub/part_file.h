// A file while it is being downloaded: NAME.part with its bytes, NAME.part.ranges with what of it is there.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "hub/repository.h"

namespace sluice::hub {

/// Ranges of the file grow from their first byte on; how far each has come is written to the journal after
/// the bytes themselves, so that a killed download goes on at the byte where it was. What a crash of the
/// machine may have lost is found by the checksum. Distinct ranges may be written by distinct threads at
/// once.
///
/// The journal is 4096 bytes of JSON (what is downloaded, the ETag seen, the range size), then for each range
/// the number of bytes there, 64 bits, little-endian.
class PartFile {
 public:
  /// Opens or creates both files. kInvalidArgument when another download holds the part, kIo when the disk
  /// lacks room for the rest: the whole size is claimed here. Progress made for another content is dropped.
  static Result<std::unique_ptr<PartFile>> open(const std::filesystem::path& path, const RepoFile& file,
                                                const std::string& commit, std::uint64_t range_bytes);
  ~PartFile();
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  [[nodiscard]] std::size_t ranges() const { return done_.size(); }
  [[nodiscard]] ByteRange range(std::size_t index) const;
  [[nodiscard]] std::uint64_t done(std::size_t index) const { return done_[index]; }
  [[nodiscard]] bool complete(std::size_t index) const { return done(index) == range(index).count(); }
  [[nodiscard]] std::uint64_t total_done() const;
  [[nodiscard]] std::uint64_t range_bytes() const { return range_bytes_; }

  /// The ETag under which the bytes were got; empty before the first.
  [[nodiscard]] const std::string& etag() const { return etag_; }
  Result<void> set_etag(const std::string& etag);

  /// Appends to a range: data first, then the journal; a range that becomes full is synced.
  Result<void> append(std::size_t index, std::span<const std::byte> bytes);

  /// Forgets all progress.
  Result<void> restart();

  /// Checksum over the whole part, as `file` is known by.
  Result<std::string> checksum(const RepoFile& file, const Cancelled& cancelled) const;

  /// Syncs, gives the part its final name, removes the journal.
  Result<void> commit();

  /// Removes both files.
  void remove();

 private:
  explicit PartFile(std::filesystem::path path);
  Result<void> lock();
  Result<void> make_room(std::uint64_t size);
  bool read_journal();
  Result<void> write_header();
  [[nodiscard]] Error failed(const std::filesystem::path& path, std::string_view doing) const;

  std::filesystem::path final_, part_, journal_;
  int fd_ = -1;
  int journal_fd_ = -1;
  std::uint64_t size_ = 0;
  std::uint64_t range_bytes_ = 0;
  std::string name_, commit_, checksum_, etag_;
  std::vector<std::atomic<std::uint64_t>> done_;
};

/// Checksum of a file on disk, as `file` is known by; kNotFound where there is none of that size.
Result<std::string> checksum_on_disk(const std::filesystem::path& path, const RepoFile& file,
                                     const Cancelled& cancelled);

/// Removes what downloads to `path` have left: the file, its part and the journal. Missing ones are fine.
Result<void> remove_download(const std::filesystem::path& path);

}  // namespace sluice::hub

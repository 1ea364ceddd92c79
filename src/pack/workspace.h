// The hidden folder in which a store is made before it appears.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"

namespace sluice::pack {

/// DIR/.pulling: what a store is being downloaded from lies there; not the packer's, but no reason to refuse
/// DIR.
inline constexpr const char* kPullFolder = ".pulling";

/// Refuses what is no folder, and one that holds other things than a store or what is left of making one:
/// nothing else is ever touched. A folder that does not exist is fine.
Result<void> check_target(const std::filesystem::path& target);

/// Where the journal of a store that is being made in `target` lies.
std::filesystem::path journal_path(const std::filesystem::path& target);
/// Bytes of disk that what was made of it takes up.
std::uint64_t bytes_made(const std::filesystem::path& target);

/// DIR/.packing: data files and the journal lie here until the store is complete, so that DIR never holds
/// part of one. Locked: one process at a time. A folder inside DIR, not beside it, as DIR may be a file
/// system of its own.
class Workspace {
 public:
  /// Creates DIR and the folder as needed and takes the lock. Errors: DIR is no folder, or holds other
  /// things than a store; it cannot be written; another process is packing into it (unless `wait`).
  static Result<std::unique_ptr<Workspace>> open(const std::filesystem::path& target, bool wait = false);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
  [[nodiscard]] std::filesystem::path journal() const { return journal_path(target_); }

  /// Removes everything made so far, and DIR if it did not exist before.
  void discard();
  /// Removes the data of earlier work, all but the lock.
  Result<void> clear();
  /// Whether `names` can be moved into DIR: an error names what is in the way.
  [[nodiscard]] Result<void> check_places(const std::vector<std::string>& names) const;
  /// Moves `names` into DIR in place of what is there, the manifest last; removes files of the store that was
  /// there before which are not among them. Can be repeated after an interruption at any point.
  Result<void> publish(const std::vector<std::string>& names);

 private:
  void remove();
  Workspace(std::filesystem::path target, int lock, bool created);

  std::filesystem::path target_, folder_;
  int lock_ = -1;
  bool created_ = false;  // DIR did not exist
};

/// A file of stores made on first use (PackOptions::stamp).
constexpr const char* kStampName = "source.stamp";

/// Whether the folder holds a store with this stamp.
bool has_stamp(const std::filesystem::path& folder, const std::string& stamp);

/// Bytes of disk that the files in a folder take up.
std::uint64_t allocated_bytes(const std::filesystem::path& folder);

}  // namespace sluice::pack

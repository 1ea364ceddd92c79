// The folder in which a checkpoint lies while it is downloaded and packed.
#pragma once

#include <filesystem>
#include <memory>

#include "base/result.h"
#include "hub/repository.h"

namespace sluice::pull {

/// Holds files of one repository at one commit, as its file `.pull` says, which is also the lock: one pull at
/// a time. What an interrupted pull of the same commit left stays; of another commit only shards of names
/// that the new one has too stay, since their checksums tell what they are.
class WorkFolder {
 public:
  /// A hidden folder, made as needed with the folders above it, which is removed at the end.
  static Result<std::unique_ptr<WorkFolder>> open_hidden(const std::filesystem::path& path,
                                                         const hub::Repository& repository);
  /// One that the user named and that becomes a checkpoint: new, empty, or of the same commit.
  static Result<std::unique_ptr<WorkFolder>> open_kept(const std::filesystem::path& path,
                                                       const hub::Repository& repository);
  ~WorkFolder();
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  /// Whether nothing of an earlier pull was there.
  [[nodiscard]] bool fresh() const { return fresh_; }
  /// Removes everything in it, it, and the folder above if that is empty and was made with it.
  void discard();

 private:
  explicit WorkFolder(std::filesystem::path path) : path_(std::move(path)) {}
  static Result<std::unique_ptr<WorkFolder>> open(const std::filesystem::path& path,
                                                  const hub::Repository& repository, bool kept);
  Result<void> lock();
  Result<void> clear(const hub::Repository& repository);

  std::filesystem::path path_;
  int lock_ = -1;
  bool fresh_ = false;
  bool created_ = false;        // the folder
  bool created_above_ = false;  // the one that it lies in
};

}  // namespace sluice::pull

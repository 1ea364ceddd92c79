// What is done already of an interrupted pack.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "pack/tasks.h"

namespace sluice::pack {

/// Checksums that a task's output has: a dense tensor's parts, a record in each precision, an n-gram block.
using TaskSums = std::vector<std::uint64_t>;

/// A text file of one line a finished task, appended only after the task's bytes are on the disk. Every line
/// carries its own checksum, so that one cut by a power failure is not believed.
class Journal {
 public:
  /// Reads the journal, if it is one of the same work: of the same source, options and program version, as
  /// `identity` tells; else starts a new one. Not thread-safe.
  static Result<Journal> open(const std::filesystem::path& path, std::uint64_t identity);
  /// As open, but looks only: nothing is written, and nothing may be added.
  static Journal look(const std::filesystem::path& path, std::uint64_t identity);
  Journal(Journal&& other) noexcept;
  Journal& operator=(Journal&& other) noexcept;
  ~Journal();

  /// Whether an earlier run did this work in part.
  [[nodiscard]] bool resumed() const { return resumed_; }
  /// All files are written; what may be left is moving them.
  [[nodiscard]] bool committing() const { return committing_; }
  [[nodiscard]] const TaskSums* find(TaskKind kind, std::int64_t index) const;

  struct Entry {
    TaskKind kind;
    std::int64_t index;
    TaskSums sums;
  };
  /// Records finished tasks; returns when they are on the disk.
  Result<void> add(const std::vector<Entry>& entries);
  Result<void> add_commit();

 private:
  Journal(std::filesystem::path path, int fd) : path_(std::move(path)), fd_(fd) {}
  Result<void> append(const std::string& lines);
  std::size_t take_all(std::string_view text, std::string_view head);
  bool take(std::string_view line);

  std::filesystem::path path_;
  int fd_ = -1;
  bool resumed_ = false;
  bool committing_ = false;
  std::map<std::pair<TaskKind, std::int64_t>, TaskSums> done_;
};

}  // namespace sluice::pack

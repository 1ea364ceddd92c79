#include "pull/work_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/file.h"
#include "base/json.h"

namespace sluice::pull {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMarker = ".pull";
constexpr std::uint64_t kMostMarker = 4096;

Error failed(const fs::path& path, std::string_view doing, const std::error_code& ec) {
  return make_error(ErrorCode::kIo, "{}: {}: {}", path.string(), doing, ec.message());
}

std::string marker_text(const hub::Repository& repository) {
  return dump_json(Json{{"repository", repository.name().owner + "/" + repository.name().name},
                        {"commit", repository.commit()}}) +
         "\n";
}

bool is_new_or_empty(const fs::path& folder) {
  std::error_code ec;
  return !fs::exists(folder, ec) || (fs::is_directory(folder, ec) && fs::is_empty(folder, ec));
}

/// The name of the repository's file of which `name` is a part, a list of ranges, or the whole.
std::string whole_name(std::string name) {
  for (const std::string_view ending : {".ranges", ".part"}) {
    if (name.ends_with(ending)) name.resize(name.size() - ending.size());
  }
  return name;
}

}  // namespace

WorkFolder::~WorkFolder() {
  if (lock_ >= 0) ::close(lock_);
}

Result<std::unique_ptr<WorkFolder>> WorkFolder::open_hidden(const fs::path& path,
                                                            const hub::Repository& repository) {
  return open(path, repository, false);
}

Result<std::unique_ptr<WorkFolder>> WorkFolder::open_kept(const fs::path& path,
                                                          const hub::Repository& repository) {
  std::error_code ec;
  if (!fs::exists(path / kMarker, ec) && !is_new_or_empty(path)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: holds other things; a new or empty folder needed to keep the source in",
                      path.string());
  }
  return open(path, repository, true);
}

Result<std::unique_ptr<WorkFolder>> WorkFolder::open(const fs::path& path, const hub::Repository& repository,
                                                     bool kept) {
  std::unique_ptr<WorkFolder> folder(new WorkFolder(path.has_filename() ? path : path.parent_path()));
  std::error_code ec;
  if (!kept && fs::is_symlink(path, ec)) {
    return make_error(ErrorCode::kInvalidArgument, "{}: no folder of ours; remove it to pull here",
                      path.string());
  }
  folder->created_above_ = path.has_parent_path() && !fs::exists(path.parent_path(), ec);
  folder->created_ = !fs::exists(path, ec);
  folder->fresh_ = is_new_or_empty(path);
  fs::create_directories(path, ec);
  if (ec) return failed(path, "creating the folder", ec);
  SLUICE_TRY(folder->lock());
  const std::string marker = marker_text(repository);
  const auto found = read_text_file(path / kMarker, kMostMarker);
  if (found.ok() && found.value() == marker) return folder;
  if (kept && found.ok() && !found.value().empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: holds another repository or commit than {} at {}; another folder needed to keep "
                      "the source in",
                      path.string(), repository.name().shown(), repository.commit());
  }
  if (!kept) SLUICE_TRY(folder->clear(repository));
  // In place, as the file is the lock. One cut short is taken for that of another commit.
  if (::ftruncate(folder->lock_, 0) != 0 ||
      ::pwrite(folder->lock_, marker.data(), marker.size(), 0) != static_cast<ssize_t>(marker.size())) {
    return make_error(ErrorCode::kIo, "{}: writing: {}", (path / kMarker).string(), std::strerror(errno));
  }
  return folder;
}

Result<void> WorkFolder::lock() {
  const fs::path marker = path_ / kMarker;
  for (;;) {
    lock_ = ::open(marker.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
    if (lock_ < 0) {
      if (errno == ENOENT) {  // a pull that ended has just removed the folder
        std::error_code ignored;
        if (fs::create_directories(path_, ignored)) continue;
        errno = ENOENT;
      }
      return make_error(ErrorCode::kIo, "{}: creating: {}", marker.string(), std::strerror(errno));
    }
    if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
      const int number = errno;
      ::close(std::exchange(lock_, -1));
      if (number == EINTR) continue;
      if (number == EWOULDBLOCK) {
        return make_error(ErrorCode::kInvalidArgument, "{}: another pull into it is running", path_.string());
      }
      return make_error(ErrorCode::kIo, "{}: locking: {}", marker.string(), std::strerror(number));
    }
    // Whoever held it may have removed it in between: then the lock is on the wrong file.
    struct stat ours {};
    struct stat there {};
    if (::fstat(lock_, &ours) == 0 && ::stat(marker.c_str(), &there) == 0 && ours.st_ino == there.st_ino) {
      return {};
    }
    ::close(std::exchange(lock_, -1));
  }
}

/// Removes all but shards, whole or in part, of names that the repository has.
Result<void> WorkFolder::clear(const hub::Repository& repository) {
  std::error_code ec;
  std::vector<fs::path> old;
  for (fs::recursive_directory_iterator it(path_, ec), end; !ec && it != end; it.increment(ec)) {
    if (it->is_directory(ec)) continue;
    const std::string name = it->path().lexically_relative(path_).string();
    const std::string whole = whole_name(name);
    const bool shard = whole.ends_with(".safetensors") && repository.find(whole) != nullptr;
    if (name != kMarker && !shard) old.push_back(it->path());
  }
  for (const fs::path& path : old) {
    if (!ec) fs::remove(path, ec);
  }
  if (ec) return failed(path_, "clearing", ec);
  return {};
}

void WorkFolder::discard() {
  std::error_code ignored;
  std::vector<fs::path> all;
  for (fs::directory_iterator it(path_, ignored), end; !ignored && it != end; it.increment(ignored)) {
    if (it->path().filename() != kMarker) all.push_back(it->path());
  }
  for (const fs::path& path : all) fs::remove_all(path, ignored);
  fs::remove(path_ / kMarker, ignored);  // last: until then it is locked
  fs::remove(path_, ignored);
  if (created_above_) fs::remove(path_.parent_path(), ignored);  // only if empty
}

}  // namespace sluice::pull

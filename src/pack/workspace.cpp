#include "pack/workspace.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <system_error>

#include "base/file.h"
#include "base/output_file.h"
#include "pack/layout.h"
#include "store/manifest.h"
#include "store/source.h"
#include "store/store_format.h"

namespace sluice::pack {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFolder = ".packing";
constexpr const char* kLock = "lock";
constexpr const char* kJournal = "journal";

Error failed(const fs::path& path, std::string_view doing, const std::error_code& ec) {
  return make_error(ErrorCode::kIo, "{}: {}: {}", path.string(), doing, ec.message());
}

constexpr const char* kReplaced = "replaced";  // names of the files of a store that is being replaced
constexpr std::uint64_t kMostNames = std::uint64_t{1} << 20;

/// Files that the store in a folder lists, a line each; empty when there is none that can be read.
std::string old_names(const fs::path& folder) {
  const auto manifest = store::read_manifest(folder);
  if (!manifest.ok()) return {};
  std::string names = std::string(kStampName) + "\n";
  for (const std::string& name : store::file_names(*manifest)) names += name + "\n";
  return names;
}

/// Files that only a store has.
bool is_store_file(const std::string& name) {
  return name == store::kManifestName || name == kStampName || name == store::kDenseName ||
         name == store::kNgramName ||
         (name.starts_with("experts.") && (name.ends_with(".bin") || name.ends_with(".sums")));
}

/// Opens the lock file and locks it, making sure that it was not removed in between.
Result<int> take_lock(const fs::path& path, const fs::path& target, bool wait) {
  int attempts = 0;
  for (;;) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) {
      const int number = errno;
      // Whoever had the lock before may be removing the folder, and so may those who wait for it, one by one.
      constexpr int kMostAttempts = 10'000;
      std::error_code ignored;
      fs::create_directories(path.parent_path(), ignored);
      if (number == ENOENT && ++attempts < kMostAttempts) continue;
      return make_error(ErrorCode::kIo, "{}: creating: {}", path.string(), std::strerror(number));
    }
    if (::flock(fd, wait ? LOCK_EX : LOCK_EX | LOCK_NB) != 0) {
      const int number = errno;
      ::close(fd);
      if (number == EINTR) continue;
      if (number == EWOULDBLOCK) {
        return make_error(ErrorCode::kInvalidArgument, "{}: another process is packing into it",
                          target.string());
      }
      return make_error(ErrorCode::kIo, "{}: locking: {}", path.string(), std::strerror(number));
    }
    struct stat ours {};
    struct stat there {};
    if (::fstat(fd, &ours) == 0 && ::stat(path.c_str(), &there) == 0 && ours.st_ino == there.st_ino)
      return fd;
    ::close(fd);
  }
}

}  // namespace

Result<void> check_target(const fs::path& target) {
  std::error_code ec;
  if (!fs::exists(target, ec)) return {};
  if (!fs::is_directory(target, ec)) {
    return make_error(ErrorCode::kInvalidArgument, "{}: not a folder; a folder for the store needed",
                      target.string());
  }
  const auto kind = fs::symlink_status(target / kFolder, ec).type();
  if (kind != fs::file_type::not_found && kind != fs::file_type::directory) {
    return make_error(ErrorCode::kInvalidArgument, "{}: no folder of ours; remove it to pack here",
                      (target / kFolder).string());
  }
  if (store::is_store(target)) return {};
  // Files of a store without a manifest: a run ended while they were moved here.
  const bool unfinished = kind == fs::file_type::directory;
  fs::directory_iterator it(target, ec);
  for (const fs::directory_iterator end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    if (name == kPullFolder || name == kFolder || name == "lost+found") continue;
    if (unfinished && (is_store_file(name) || is_copied_file(name))) continue;
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: holds {} and no packed store; a new or empty folder needed", target.string(),
                      name);
  }
  if (ec) return failed(target, "listing", ec);
  return {};
}

fs::path journal_path(const fs::path& target) {
  return target / kFolder / kJournal;
}

std::uint64_t bytes_made(const fs::path& target) {
  return allocated_bytes(target / kFolder);
}

Workspace::Workspace(fs::path target, int lock, bool created)
    : target_(std::move(target)), folder_(target_ / kFolder), lock_(lock), created_(created) {}

Workspace::~Workspace() {
  if (lock_ >= 0) ::close(lock_);
}

Result<std::unique_ptr<Workspace>> Workspace::open(const fs::path& target, bool wait) {
  std::error_code ec;
  const bool exists = fs::exists(target, ec);
  SLUICE_TRY(check_target(target));
  fs::create_directories(target / kFolder, ec);
  if (ec) return failed(target, "creating the folder", ec);
  auto lock = take_lock(target / kFolder / kLock, target, wait);
  if (!lock.ok()) {
    if (!exists) {
      fs::remove(target / kFolder, ec);
      fs::remove(target, ec);
    }
    return lock.error();
  }
  return std::unique_ptr<Workspace>(new Workspace(target, lock.value(), !exists));
}

void Workspace::discard() {
  remove();
  std::error_code ignored;
  if (created_) fs::remove(target_, ignored);  // only if empty
}

void Workspace::remove() {
  // The lock goes last: until then nobody else has the folder, and who comes after makes a lock of his own,
  // in a folder that then is not empty and stays.
  (void)clear();
  std::error_code ignored;
  fs::remove(folder_ / kLock, ignored);
  fs::remove(folder_, ignored);
}

Result<void> Workspace::clear() {
  std::error_code ec;
  std::vector<fs::path> old;
  for (fs::directory_iterator it(folder_, ec), end; !ec && it != end; it.increment(ec)) {
    if (it->path().filename() != kLock) old.push_back(it->path());
  }
  for (const fs::path& path : old) {
    if (!ec) fs::remove_all(path, ec);
  }
  if (ec) return failed(folder_, "clearing", ec);
  return {};
}

Result<void> Workspace::check_places(const std::vector<std::string>& names) const {
  for (const std::string& name : names) {
    std::error_code ec;
    if (!fs::is_directory(target_ / name, ec)) continue;
    return make_error(ErrorCode::kInvalidArgument, "{}: a folder found where a file of the store is to be",
                      (target_ / name).string());
  }
  return {};
}

Result<void> Workspace::publish(const std::vector<std::string>& names) {
  std::error_code ec;
  const auto move = [&](const std::string& name) -> Result<void> {
    if (!fs::exists(folder_ / name, ec)) {
      // Moved before an interruption.
      if (fs::exists(target_ / name, ec)) return {};
      return make_error(ErrorCode::kIo, "{}: vanished while packing", (folder_ / name).string());
    }
    fs::rename(folder_ / name, target_ / name, ec);
    if (ec) return failed(folder_ / name, "renaming", ec);
    return {};
  };
  // A store that is there stops being one before its files change. What it had and the new one has not, goes.
  if (fs::exists(folder_ / store::kManifestName, ec)) {
    if (const auto before = old_names(target_); !before.empty() && !fs::exists(folder_ / kReplaced, ec)) {
      SLUICE_TRY(write_text_file(folder_ / kReplaced, before));
    }
    fs::remove(target_ / store::kManifestName, ec);
    if (ec) return failed(target_ / store::kManifestName, "removing", ec);
    sync_folder(target_);
  }
  if (const auto replaced = read_text_file(folder_ / kReplaced, kMostNames); replaced.ok()) {
    std::istringstream lines(*replaced);
    for (std::string name; std::getline(lines, name);) {
      if (std::find(names.begin(), names.end(), name) == names.end()) fs::remove(target_ / name, ec);
    }
  }
  for (const std::string& name : names) {
    if (name != store::kManifestName) SLUICE_TRY(move(name));
  }
  sync_folder(target_);
  SLUICE_TRY(move(std::string(store::kManifestName)));
  sync_folder(target_);
  remove();
  return {};
}

bool has_stamp(const fs::path& folder, const std::string& stamp) {
  constexpr std::uint64_t kMost = std::uint64_t{16} << 20;
  if (!store::is_store(folder)) return false;
  const auto found = read_text_file(folder / kStampName, kMost);
  return found.ok() && found.value() == stamp;
}

std::uint64_t allocated_bytes(const fs::path& folder) {
  constexpr std::uint64_t kBlock = 512;  // the unit of st_blocks
  std::uint64_t bytes = 0;
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    struct stat st {};
    if (::stat(it->path().c_str(), &st) == 0 && S_ISREG(st.st_mode)) {
      bytes += static_cast<std::uint64_t>(st.st_blocks) * kBlock;
    }
  }
  return bytes;
}

}  // namespace sluice::pack

#include "base/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace sluice {
namespace {

namespace fs = std::filesystem;

constexpr int kAttempts = 100;
constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;  // one call moves at most 2 GiB on Linux

Error io_error(const std::string& name, std::string_view doing, int number) {
  return make_error(ErrorCode::kIo, "{}: {}: {}", name, doing, std::strerror(number));
}

int allocate(int fd, std::uint64_t bytes) {
#ifdef __linux__
  return ::fallocate(fd, 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
#else
  (void)fd;
  (void)bytes;
  return EOPNOTSUPP;
#endif
}

/// Asks for pages to be written soon; only a hint.
void start_writeback(int fd, std::uint64_t offset, std::uint64_t bytes) {
#ifdef __linux__
  constexpr std::uint64_t kWorthIt = std::uint64_t{256} << 10;
  if (bytes < kWorthIt) return;
  (void)::sync_file_range(fd, static_cast<off_t>(offset), static_cast<off_t>(bytes), SYNC_FILE_RANGE_WRITE);
#else
  (void)fd;
  (void)offset;
  (void)bytes;
#endif
}

bool is_zero(std::span<const std::byte> bytes) {
  return bytes.empty() ||
         (bytes[0] == std::byte{} && std::memcmp(bytes.data(), bytes.data() + 1, bytes.size() - 1) == 0);
}

int sync_data(int fd) {
#ifdef __linux__
  return ::fdatasync(fd);
#else
  return ::fsync(fd);
#endif
}

}  // namespace

PartFile::~PartFile() {
  if (fd_ >= 0) ::close(fd_);
  if (created_) ::unlink(temporary_.c_str());
}

Result<void> PartFile::create() {
  // A link stays a link: what it points to is replaced. A device or a pipe is not ours to replace.
  std::error_code ignored;
  if (const auto target = fs::canonical(final_, ignored); !ignored) final_ = target;
  const auto kind = fs::status(final_, ignored).type();
  if (kind != fs::file_type::not_found && kind != fs::file_type::regular) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: exists and is no regular file, one needed to write to", final_.string());
  }
  // O_EXCL: two writers must not share one temporary file, and one left by a killed process is not taken
  // over.
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    temporary_ = final_;
    temporary_ += fmt::format(".{}-{}.part", ::getpid(), attempt);
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd_ >= 0 || errno != EEXIST) break;
  }
  if (fd_ < 0) return failed("creating");
  created_ = true;
  return {};
}

Result<void> PartFile::write(std::span<const std::byte> bytes) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::write(fd_, bytes.data() + done, std::min(bytes.size() - done, kMostAtOnce));
    if (got < 0) {
      if (errno == EINTR) continue;
      return failed("writing");
    }
    done += static_cast<std::size_t>(got);
  }
  return {};
}

Result<void> PartFile::commit() {
  if (::fsync(fd_) != 0) return failed("syncing");
  const int fd = fd_;
  fd_ = -1;
  if (::close(fd) != 0) return failed("closing");
  if (::rename(temporary_.c_str(), final_.c_str()) != 0) return failed("renaming");
  created_ = false;
  sync_folder(final_.has_parent_path() ? final_.parent_path() : ".");
  return {};
}

Error PartFile::failed(std::string_view doing) const {
  return io_error(temporary_.string(), doing, errno);
}

Result<void> write_text_file(const fs::path& path, std::string_view text) {
  PartFile file(path);
  SLUICE_TRY(file.create());
  SLUICE_TRY(file.write(std::as_bytes(std::span(text))));
  return file.commit();
}

Result<std::unique_ptr<OutputFile>> OutputFile::open(const fs::path& path, std::uint64_t bytes, bool sparse) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return io_error(path.string(), "creating", errno);
  std::unique_ptr<OutputFile> file(new OutputFile(fd, bytes, sparse, path.string()));
  struct stat st {};
  if (::fstat(fd, &st) != 0) return io_error(file->name_, "examining", errno);
  if (!S_ISREG(st.st_mode)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: exists and is no regular file, one needed to write to", file->name_);
  }
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) return io_error(file->name_, "sizing", errno);
  if (bytes > 0 && !sparse) {
    const int reserved = allocate(fd, bytes);
    if (reserved == ENOSPC) {
      return make_error(ErrorCode::kIo, "{}: reserving {} bytes: {}", file->name_, bytes,
                        std::strerror(reserved));
    }
  }
  return file;
}

OutputFile::~OutputFile() {
  ::close(fd_);
}

Result<void> OutputFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (sparse_ && is_zero(bytes)) return {};
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = ::pwrite(fd_, bytes.data() + done, std::min(bytes.size() - done, kMostAtOnce),
                                 static_cast<off_t>(offset + done));
    if (got < 0) {
      if (errno == EINTR) continue;
      return make_error(ErrorCode::kIo, "{}: writing {} bytes at offset {}: {}", name_, bytes.size(), offset,
                        std::strerror(errno));
    }
    done += static_cast<std::size_t>(got);
  }
  start_writeback(fd_, offset, bytes.size());
  return {};
}

Result<void> OutputFile::sync() {
  if (sync_data(fd_) != 0) return io_error(name_, "syncing", errno);
  return {};
}

void sync_folder(const fs::path& folder) {
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);
  ::close(fd);
}

Result<std::uint64_t> free_space(const fs::path& folder) {
  fs::path at = fs::absolute(folder);
  struct statvfs info {};
  while (::statvfs(at.c_str(), &info) != 0) {
    if (errno == EINTR) continue;
    if (errno != ENOENT || at == at.parent_path()) {
      return io_error(folder.string(), "asking for free space", errno);
    }
    at = at.parent_path();
  }
  return std::uint64_t{info.f_bavail} * info.f_frsize;
}

}  // namespace sluice

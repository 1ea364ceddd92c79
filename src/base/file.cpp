#include "base/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace sluice {
namespace {

class PosixFile final : public File {
 public:
  PosixFile(int fd, const struct stat& st, std::string name)
      : fd_(fd),
        size_(static_cast<std::uint64_t>(st.st_size)),
        modified_(nanoseconds(st)),
        name_(std::move(name)) {}
  ~PosixFile() override { ::close(fd_); }
  PosixFile(const PosixFile&) = delete;
  PosixFile& operator=(const PosixFile&) = delete;

  [[nodiscard]] std::uint64_t size() const override { return size_; }
  [[nodiscard]] std::int64_t modified() const override { return modified_; }
  [[nodiscard]] const std::string& name() const override { return name_; }

  Result<void> read_at(std::uint64_t offset, std::span<std::byte> to) const override {
    if (offset > size_ || to.size() > size_ - offset) {
      return make_error(ErrorCode::kCorrupt, "{}: {} bytes at offset {} needed, the file has {} bytes", name_,
                        to.size(), offset, size_);
    }
    std::size_t done = 0;
    while (done < to.size()) {
      // One call moves at most 2 GiB on Linux.
      const std::size_t want = std::min<std::size_t>(to.size() - done, std::size_t{1} << 30);
      const ssize_t got = ::pread(fd_, to.data() + done, want, static_cast<off_t>(offset + done));
      if (got < 0) {
        if (errno == EINTR) continue;
        return make_error(ErrorCode::kIo, "{}: reading {} bytes at offset {}: {}", name_, to.size(), offset,
                          std::strerror(errno));
      }
      if (got == 0) {
        return make_error(ErrorCode::kCorrupt, "{}: shrank while open: {} bytes at offset {} needed, {} read",
                          name_, to.size(), offset, done);
      }
      done += static_cast<std::size_t>(got);
    }
    return {};
  }

 private:
  static std::int64_t nanoseconds(const struct stat& st) {
#ifdef __APPLE__
    const timespec& content = st.st_mtimespec;
    const timespec& change = st.st_ctimespec;
#else
    const timespec& content = st.st_mtim;
    const timespec& change = st.st_ctim;
#endif
    const auto since_epoch = [](const timespec& time) {
      return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
    };
    return std::max(since_epoch(content), since_epoch(change));
  }

  int fd_;
  std::uint64_t size_;
  std::int64_t modified_;
  std::string name_;
};

}  // namespace

Result<std::unique_ptr<File>> open_file(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a FIFO must not hang; it has no effect on the regular files that pass the check
  // below.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    const ErrorCode code = errno == ENOENT || errno == ENOTDIR ? ErrorCode::kNotFound : ErrorCode::kIo;
    return make_error(code, "{}: {}", path.string(), std::strerror(errno));
  }
  struct stat st {};
  if (::fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    ::close(fd);
    return make_error(ErrorCode::kInvalidArgument, "{}: not a regular file", path.string());
  }
  return std::unique_ptr<File>(std::make_unique<PosixFile>(fd, st, path.string()));
}

Result<std::string> read_text_file(const std::filesystem::path& path, std::uint64_t limit) {
  SLUICE_ASSIGN(const auto file, open_file(path));
  if (file->size() > limit) {
    return make_error(ErrorCode::kLimit, "{}: {} bytes, at most {} are read", path.string(), file->size(),
                      limit);
  }
  std::string text(file->size(), '\0');
  SLUICE_TRY(file->read_at(0, std::as_writable_bytes(std::span(text))));
  return text;
}

}  // namespace sluice

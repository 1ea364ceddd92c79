#include "base/direct_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace sluice {

Result<std::unique_ptr<DirectFile>> DirectFile::open(const std::filesystem::path& path) {
  SLUICE_ASSIGN(auto buffered, open_file(path));
#ifdef O_DIRECT
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC);
#else
  const int fd = -1;
#endif
  return std::unique_ptr<DirectFile>(new DirectFile(std::move(buffered), fd));
}

DirectFile::~DirectFile() {
  if (fd_ >= 0) ::close(fd_);
}

Result<void> DirectFile::read_at(std::uint64_t offset, std::span<std::byte> to) const {
  const bool aligned = offset % kAlignment == 0 && to.size() % kAlignment == 0 &&
                       reinterpret_cast<std::uintptr_t>(to.data()) % kAlignment == 0;
  if (!direct_ || !aligned || offset > size() || to.size() > size() - offset)
    return buffered_->read_at(offset, to);
  std::size_t done = 0;
  while (done < to.size()) {
    const ssize_t got = ::pread(fd_, to.data() + done, to.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (got < 0 && errno == EINVAL && done == 0) {
      // The file system took the flag and refuses the read.
      direct_ = false;
      return buffered_->read_at(offset, to);
    }
    if (got < 0) {
      return make_error(ErrorCode::kIo, "{}: reading {} bytes at offset {}: {}", name(), to.size(), offset,
                        std::strerror(errno));
    }
    // A read that ends inside a block cannot be continued directly.
    if (got == 0 || static_cast<std::size_t>(got) % kAlignment != 0) return buffered_->read_at(offset, to);
    done += static_cast<std::size_t>(got);
  }
  return {};
}

}  // namespace sluice

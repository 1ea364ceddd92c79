#include "hub/part_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "base/file.h"
#include "base/units.h"

namespace sluice::hub {
namespace {

constexpr std::size_t kHeader = 4096;
constexpr std::uint64_t kMostRanges = 65536;
constexpr int kFormat = 1;

std::array<std::byte, 8> little_endian(std::uint64_t value) {
  std::array<std::byte, 8> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>((value >> (8 * i)) & 0xffU);
  return bytes;
}

std::uint64_t from_little_endian(const std::byte* bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < 8; ++i) value |= static_cast<std::uint64_t>(bytes[i]) << (8 * i);
  return value;
}

/// 0, or an errno.
int write_all(int fd, std::span<const std::byte> bytes, std::uint64_t offset) {
  while (!bytes.empty()) {
    const ssize_t got = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return got == 0 ? EIO : errno;
    bytes = bytes.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return 0;
}

std::uint64_t range_count(std::uint64_t size, std::uint64_t range_bytes) {
  return size == 0 ? 0 : (size - 1) / range_bytes + 1;
}

Result<std::string> checksum_of(const File& content, const RepoFile& file, const Cancelled& cancelled) {
  Digest digest = file.digest();
  std::vector<std::byte> buffer(std::size_t{1} << 20);
  for (std::uint64_t at = 0; at < file.size; at += buffer.size()) {
    if (cancelled && cancelled()) return make_error(ErrorCode::kCancelled, "{}: cancelled", content.name());
    const auto piece = std::span(buffer).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), file.size - at)));
    SLUICE_TRY(content.read_at(at, piece));
    digest.add(piece);
  }
  return digest.hex();
}

void sync_folder(const std::filesystem::path& path) {
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  ::fsync(fd);  // best effort: some file systems refuse it on folders
  ::close(fd);
}

}  // namespace

PartFile::PartFile(std::filesystem::path path) : final_(std::move(path)) {
  part_ = final_;
  part_ += ".part";
  journal_ = final_;
  journal_ += ".part.ranges";
}

PartFile::~PartFile() {
  if (journal_fd_ >= 0) ::close(journal_fd_);
  if (fd_ >= 0) ::close(fd_);  // and with it the lock
}

Error PartFile::failed(const std::filesystem::path& path, std::string_view doing) const {
  return make_error(ErrorCode::kIo, "{}: {}: {}", path.string(), doing, std::strerror(errno));
}

ByteRange PartFile::range(std::size_t index) const {
  const std::uint64_t first = index * range_bytes_;
  return {first, std::min(first + range_bytes_, size_) - 1};
}

std::uint64_t PartFile::total_done() const {
  std::uint64_t total = 0;
  for (const auto& done : done_) total += done;
  return total;
}

Result<void> PartFile::lock() {
  for (;;) {
    fd_ = ::open(part_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
    if (fd_ < 0) return failed(part_, "creating");
    struct stat opened {};
    if (::fstat(fd_, &opened) != 0 || !S_ISREG(opened.st_mode)) {
      return make_error(ErrorCode::kInvalidArgument, "{}: not a regular file", part_.string());
    }
    if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) return failed(part_, "locking");
      return make_error(ErrorCode::kInvalidArgument, "{}: another download of it is running", part_.string());
    }
    // Whoever held it may have renamed or removed it in between: then the lock is on the wrong file.
    struct stat named {};
    if (::stat(part_.c_str(), &named) == 0 && named.st_ino == opened.st_ino &&
        named.st_dev == opened.st_dev) {
      return {};
    }
    ::close(fd_);
    fd_ = -1;
  }
}

Result<void> PartFile::make_room(std::uint64_t size) {
  struct stat now {};
  struct statvfs disk {};
  if (::fstat(fd_, &now) != 0 || ::fstatvfs(fd_, &disk) != 0) return failed(part_, "asking for its space");
  const std::uint64_t held = static_cast<std::uint64_t>(now.st_blocks) * 512;
  const std::uint64_t needed = size > held ? size - held : 0;
  const std::uint64_t free = static_cast<std::uint64_t>(disk.f_bavail) * disk.f_frsize;
  if (needed > free) {
    return make_error(ErrorCode::kIo, "{}: {} more needed on its disk, {} free", final_.string(),
                      format_size(needed), format_size(free));
  }
  if (static_cast<std::uint64_t>(now.st_size) > size && ::ftruncate(fd_, 0) != 0)
    return failed(part_, "truncating");
  if (size == 0 || ::fallocate(fd_, 0, 0, static_cast<off_t>(size)) == 0) return {};
  if (errno != EOPNOTSUPP && errno != ENOSYS) return failed(part_, "claiming its space");
  return ::ftruncate(fd_, static_cast<off_t>(size)) == 0 ? Result<void>()
                                                         : failed(part_, "claiming its space");
}

Result<std::unique_ptr<PartFile>> PartFile::open(const std::filesystem::path& path, const RepoFile& file,
                                                 const std::string& commit, std::uint64_t range_bytes) {
  if (path.has_parent_path()) {
    std::error_code error;
    std::filesystem::create_directories(path.parent_path(), error);
    if (error) {
      return make_error(ErrorCode::kIo, "{}: creating: {}", path.parent_path().string(), error.message());
    }
  }
  std::unique_ptr<PartFile> part(new PartFile(path));
  SLUICE_TRY(part->lock());
  part->size_ = file.size;
  part->name_ = file.path;
  part->commit_ = commit;
  part->checksum_ = file.checksum();
  part->journal_fd_ =
      ::open(part->journal_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  if (part->journal_fd_ < 0) return part->failed(part->journal_, "creating");
  const bool resumed = part->read_journal();
  if (auto room = part->make_room(file.size); !room.ok()) {
    if (!resumed) part->remove();
    return room.error();
  }
  if (!resumed) {
    part->range_bytes_ = std::max({range_bytes, file.size / kMostRanges + 1, std::uint64_t{1}});
    part->done_ = std::vector<std::atomic<std::uint64_t>>(range_count(file.size, part->range_bytes_));
    SLUICE_TRY(part->restart());
  }
  return part;
}

bool PartFile::read_journal() {
  struct stat journal {};
  struct stat part {};
  if (::fstat(journal_fd_, &journal) != 0 || ::fstat(fd_, &part) != 0 || !S_ISREG(journal.st_mode))
    return false;
  const auto length = static_cast<std::uint64_t>(journal.st_size);
  if (length < kHeader || length > kHeader + 8 * (kMostRanges + 1)) return false;
  std::vector<std::byte> bytes(length);
  if (::pread(journal_fd_, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) return false;
  const auto header = parse_json({reinterpret_cast<const char*>(bytes.data()), kHeader}, journal_.string());
  if (!header.ok() || !header->is_object()) return false;
  const auto text = [&header](const char* key) {
    const auto at = header->find(key);
    return at != header->end() && at->is_string() ? at->get<std::string>() : std::string();
  };
  const auto number = [&header](const char* key) {
    const auto at = header->find(key);
    return at != header->end() && at->is_number_unsigned() ? at->get<std::uint64_t>() : 0;
  };
  // The checksum says that it is the same content, whatever commit it was found in.
  if (number("format") != kFormat || number("size") != size_ || text("checksum") != checksum_ ||
      static_cast<std::uint64_t>(part.st_size) != size_) {
    return false;
  }
  range_bytes_ = number("range_bytes");
  if (range_bytes_ == 0 || range_bytes_ > INT64_MAX) return false;
  const std::uint64_t count = range_count(size_, range_bytes_);
  if (length != kHeader + 8 * count) return false;
  done_ = std::vector<std::atomic<std::uint64_t>>(count);
  for (std::size_t i = 0; i < count; ++i) {
    done_[i] = from_little_endian(bytes.data() + kHeader + 8 * i);
    if (done_[i] > range(i).count()) return false;
  }
  etag_ = text("etag");
  return true;
}

Result<void> PartFile::write_header() {
  Json header;
  header["format"] = kFormat;
  header["file"] = name_;
  header["commit"] = commit_;
  header["size"] = size_;
  header["checksum"] = checksum_;
  header["etag"] = etag_;
  header["range_bytes"] = range_bytes_;
  std::string text = dump_json(header);
  // A name that escapes to more than a page is for people only.
  if (text.size() >= kHeader) {
    header.erase("file");
    text = dump_json(header);
  }
  text.resize(kHeader - 1, ' ');
  text += '\n';
  errno = write_all(journal_fd_, std::as_bytes(std::span(text)), 0);
  return errno == 0 ? Result<void>() : failed(journal_, "writing");
}

Result<void> PartFile::set_etag(const std::string& etag) {
  etag_ = etag;
  return write_header();
}

Result<void> PartFile::restart() {
  etag_.clear();
  for (auto& done : done_) done = 0;
  // Emptied first: from here on nothing of the old content counts.
  if (::ftruncate(journal_fd_, 0) != 0 ||
      ::ftruncate(journal_fd_, static_cast<off_t>(kHeader + 8 * done_.size())) != 0) {
    return failed(journal_, "writing");
  }
  return write_header();
}

Result<void> PartFile::append(std::size_t index, std::span<const std::byte> bytes) {
  const ByteRange range = this->range(index);
  const std::uint64_t before = done_[index];
  if (bytes.size() > range.count() - before) {
    return make_error(ErrorCode::kCorrupt, "{}: bytes past the end of a range", part_.string());
  }
  errno = write_all(fd_, bytes, range.first + before);
  if (errno != 0) return failed(part_, "writing");
  const std::uint64_t after = before + bytes.size();
  // What the journal calls a full range shall survive a crash of the machine too.
  if (after == range.count() && ::fdatasync(fd_) != 0) return failed(part_, "syncing");
  errno = write_all(journal_fd_, little_endian(after), kHeader + 8 * index);
  if (errno != 0) return failed(journal_, "writing");
  done_[index] = after;
  return {};
}

Result<std::string> PartFile::checksum(const RepoFile& file, const Cancelled& cancelled) const {
  SLUICE_ASSIGN(const auto content, open_file(part_));
  return checksum_of(*content, file, cancelled);
}

Result<void> PartFile::commit() {
  if (::fsync(fd_) != 0) return failed(part_, "syncing");
  if (::rename(part_.c_str(), final_.c_str()) != 0) return failed(part_, "renaming");
  sync_folder(final_);
  ::unlink(journal_.c_str());
  return {};
}

void PartFile::remove() {
  ::unlink(journal_.c_str());
  ::unlink(part_.c_str());
}

Result<std::string> checksum_on_disk(const std::filesystem::path& path, const RepoFile& file,
                                     const Cancelled& cancelled) {
  SLUICE_ASSIGN(const auto content, open_file(path));
  if (content->size() != file.size) {
    return make_error(ErrorCode::kNotFound, "{}: {} bytes, {} needed", path.string(), content->size(),
                      file.size);
  }
  return checksum_of(*content, file, cancelled);
}

Result<void> remove_download(const std::filesystem::path& path) {
  for (const char* ending : {"", ".part.ranges", ".part"}) {
    const std::string name = path.string() + ending;
    if (::unlink(name.c_str()) != 0 && errno != ENOENT && errno != ENOTDIR) {
      return make_error(ErrorCode::kIo, "{}: removing: {}", name, std::strerror(errno));
    }
  }
  return {};
}

}  // namespace sluice::hub

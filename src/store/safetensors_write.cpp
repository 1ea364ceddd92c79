#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <set>
#include <system_error>

#include "base/json.h"
#include "store/safetensors.h"

namespace sluice::store {
namespace {

/// A file under a temporary name; removed again unless it was renamed into place.
class PartFile {
 public:
  explicit PartFile(std::filesystem::path final_path) : final_(std::move(final_path)) {}
  ~PartFile() {
    if (fd_ >= 0) ::close(fd_);
    if (created_) ::unlink(temporary_.c_str());
  }
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  Result<void> create() {
    // A link stays a link: what it points to is replaced. A device or a pipe is not ours to replace.
    std::error_code ignored;
    if (const auto target = std::filesystem::canonical(final_, ignored); !ignored) final_ = target;
    const auto kind = std::filesystem::status(final_, ignored).type();
    if (kind != std::filesystem::file_type::not_found && kind != std::filesystem::file_type::regular) {
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

  Result<void> write(std::span<const std::byte> bytes) {
    std::size_t done = 0;
    while (done < bytes.size()) {
      const std::size_t want = std::min<std::size_t>(bytes.size() - done, std::size_t{1} << 30);
      const ssize_t got = ::write(fd_, bytes.data() + done, want);
      if (got < 0) {
        if (errno == EINTR) continue;
        return failed("writing");
      }
      done += static_cast<std::size_t>(got);
    }
    return {};
  }

  /// Makes the data durable, then visible, then the name durable.
  Result<void> commit() {
    if (::fsync(fd_) != 0) return failed("syncing");
    const int fd = fd_;
    fd_ = -1;
    if (::close(fd) != 0) return failed("closing");
    if (::rename(temporary_.c_str(), final_.c_str()) != 0) return failed("renaming");
    created_ = false;
    const std::filesystem::path folder = final_.has_parent_path() ? final_.parent_path() : ".";
    const int dir = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir >= 0) {
      ::fsync(dir);  // best effort: some file systems refuse it on folders
      ::close(dir);
    }
    return {};
  }

 private:
  Error failed(std::string_view doing) const {
    return make_error(ErrorCode::kIo, "{}: {}: {}", temporary_.string(), doing, std::strerror(errno));
  }

  static constexpr int kAttempts = 100;

  std::filesystem::path final_, temporary_;
  int fd_ = -1;
  bool created_ = false;
};

std::string quoted(const std::string& text) {
  return dump_json(Json(text));
}

}  // namespace

Result<void> write_safetensors(const std::filesystem::path& path, std::span<const TensorData> tensors,
                               const std::map<std::string, std::string>& metadata) {
  std::string header = "{";
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) {
      if (header.back() != '{') header += ',';
      header += quoted(key) + ":" + quoted(value);
    }
    header += '}';
  }
  std::set<std::string_view> names;
  std::uint64_t offset = 0;
  for (const TensorData& t : tensors) {
    std::uint64_t needed = static_cast<std::uint64_t>(dtype_size(t.dtype));
    for (const std::int64_t n : t.shape) needed *= static_cast<std::uint64_t>(n);
    if (needed != t.bytes.size()) {
      return make_error(ErrorCode::kInvalidArgument, "{}: tensor {}: {} bytes given, {} needed for {} {}",
                        path.string(), t.name, t.bytes.size(), needed, dtype_name(t.dtype),
                        shape_text(t.shape));
    }
    if (t.name == "__metadata__" || !names.insert(t.name).second) {
      return make_error(ErrorCode::kInvalidArgument, "{}: tensor name {} given twice or reserved",
                        path.string(), t.name);
    }
    if (header.back() != '{') header += ',';
    header += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}", quoted(t.name),
                          dtype_name(t.dtype), shape_text(t.shape), offset, offset + t.bytes.size());
    offset += t.bytes.size();
  }
  header += '}';
  // Readers that map the file want the data aligned; the format allows spaces at the end of the header.
  while (header.size() % 8 != 0) header += ' ';

  std::array<std::byte, 8> length{};
  for (std::size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<std::byte>((header.size() >> (8 * i)) & 0xffU);
  }
  PartFile file(path);
  SLUICE_TRY(file.create());
  SLUICE_TRY(file.write(length));
  SLUICE_TRY(file.write(std::as_bytes(std::span(header))));
  for (const TensorData& t : tensors) SLUICE_TRY(file.write(t.bytes));
  return file.commit();
}

}  // namespace sluice::store

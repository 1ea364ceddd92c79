// The safetensors container: a length, a JSON header, and tensor bytes.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/output_file.h"
#include "base/result.h"

namespace sluice::store {

enum class Dtype { kBool, kU8, kI8, kF8E4M3, kU16, kI16, kF16, kBf16, kU32, kI32, kF32, kU64, kI64, kF64 };

std::string_view dtype_name(Dtype dtype);  // as in the file: "BF16", "F8_E4M3", ...
std::int64_t dtype_size(Dtype dtype);      // bytes

/// Where a tensor lies in its file.
struct TensorInfo {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0;  // from the start of the file
  std::uint64_t bytes = 0;
  [[nodiscard]] std::int64_t elements() const;
};

std::string shape_text(std::span<const std::int64_t> shape);  // "[2, 3]"

/// Parsed and checked header: every tensor inside the file, none overlapping, sizes equal to shape x dtype,
/// the data ending where the file ends. Up to 7 bytes of padding may stand before a tensor.
struct SafetensorsHeader {
  std::map<std::string, TensorInfo, std::less<>> tensors;
  std::map<std::string, std::string> metadata;
};

/// Parses the first bytes of a file: `head` starts at offset 0 and holds at least the whole header.
Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> head, std::uint64_t file_size,
                                                   std::string_view what);

/// An open safetensors file.
class SafetensorsFile {
 public:
  static Result<std::unique_ptr<SafetensorsFile>> open(const std::filesystem::path& path);
  static Result<std::unique_ptr<SafetensorsFile>> open(std::unique_ptr<File> file);

  [[nodiscard]] const SafetensorsHeader& header() const { return header_; }
  [[nodiscard]] const File& file() const { return *file_; }
  /// Checksum of the file's first bytes: the length and the header.
  [[nodiscard]] std::uint64_t header_checksum() const { return header_checksum_; }
  [[nodiscard]] const TensorInfo* find(std::string_view name) const;

  /// Bytes of one tensor, or of a part of it.
  Result<std::vector<std::byte>> read(const TensorInfo& tensor) const;
  Result<void> read(const TensorInfo& tensor, std::uint64_t offset, std::span<std::byte> to) const;

 private:
  std::unique_ptr<File> file_;
  SafetensorsHeader header_;
  std::uint64_t header_checksum_ = 0;
};

/// One tensor to write.
struct TensorData {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

/// Writes a safetensors file under a temporary name and renames it into place; an error leaves nothing
/// behind.
Result<void> write_safetensors(const std::filesystem::path& path, std::span<const TensorData> tensors,
                               const std::map<std::string, std::string>& metadata = {});

/// A tensor whose bytes come later.
struct TensorPlan {
  std::string name;
  Dtype dtype = Dtype::kF32;
  std::vector<std::int64_t> shape;
  [[nodiscard]] std::uint64_t bytes() const;
};

/// A safetensors file too large for memory: its tensors are given in parts, in any order and from any thread.
/// Under a temporary name until it is whole; removed again unless it was committed.
class SafetensorsWriter {
 public:
  static Result<std::unique_ptr<SafetensorsWriter>> create(
      const std::filesystem::path& path, std::span<const TensorPlan> tensors,
      const std::map<std::string, std::string>& metadata = {});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// Bytes of tensor number `tensor` from `offset` on; each is to be given once. Thread-safe.
  Result<void> write(std::size_t tensor, std::uint64_t offset, std::span<const std::byte> bytes);
  /// Makes the file durable and gives it its name. An error when bytes are missing.
  Result<void> commit();

 private:
  explicit SafetensorsWriter(std::filesystem::path path);

  std::filesystem::path path_, temporary_;
  std::unique_ptr<OutputFile> file_;
  std::vector<std::uint64_t> offsets_;  // of each tensor in the file, and the end
  std::atomic<std::uint64_t> missing_{0};
};

}  // namespace sluice::store

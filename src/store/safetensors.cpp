#include "store/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "base/checksum.h"
#include "store/safetensors_sax.h"

namespace sluice::store {
namespace {

struct DtypeRow {
  Dtype dtype;
  std::string_view name;
  std::int64_t size;
};

constexpr std::array<DtypeRow, 14> kDtypes = {{{Dtype::kBool, "BOOL", 1},
                                               {Dtype::kU8, "U8", 1},
                                               {Dtype::kI8, "I8", 1},
                                               {Dtype::kF8E4M3, "F8_E4M3", 1},
                                               {Dtype::kU16, "U16", 2},
                                               {Dtype::kI16, "I16", 2},
                                               {Dtype::kF16, "F16", 2},
                                               {Dtype::kBf16, "BF16", 2},
                                               {Dtype::kU32, "U32", 4},
                                               {Dtype::kI32, "I32", 4},
                                               {Dtype::kF32, "F32", 4},
                                               {Dtype::kU64, "U64", 8},
                                               {Dtype::kI64, "I64", 8},
                                               {Dtype::kF64, "F64", 8}}};

// The format's own limit: a header is parsed in memory.
constexpr std::uint64_t kMaxHeader = 100'000'000;
constexpr std::uint64_t kLengthBytes = 8;

std::uint64_t header_length(std::span<const std::byte> head) {
  std::uint64_t n = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) n |= std::to_integer<std::uint64_t>(head[i]) << (8 * i);
  return n;
}

/// Length of the header, checked against the file before anything is allocated for it.
Result<std::uint64_t> check_length(std::span<const std::byte> head, std::uint64_t file_size,
                                   std::string_view what) {
  if (file_size < kLengthBytes || head.size() < kLengthBytes) {
    return make_error(ErrorCode::kCorrupt, "{}: {} bytes found, at least {} needed for a safetensors file",
                      what, file_size, kLengthBytes);
  }
  const std::uint64_t length = header_length(head);
  if (length > kMaxHeader) {
    return make_error(ErrorCode::kLimit,
                      "{}: header of {} bytes found, at most {} allowed (not a safetensors file?)", what,
                      length, kMaxHeader);
  }
  if (length > file_size - kLengthBytes) {
    return make_error(ErrorCode::kCorrupt, "{}: truncated in the header: {} bytes needed, the file has {}",
                      what, kLengthBytes + length, file_size);
  }
  return length;
}

/// Elements x size, or nullopt when the product does not fit in int64.
std::optional<std::uint64_t> checked_bytes(std::span<const std::int64_t> shape, Dtype dtype) {
  std::uint64_t bytes = static_cast<std::uint64_t>(dtype_size(dtype));
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  for (const std::int64_t n : shape) {
    if (n < 0) return std::nullopt;
    if (n != 0 && bytes > kMost / static_cast<std::uint64_t>(n)) return std::nullopt;
    bytes *= static_cast<std::uint64_t>(n);
  }
  return bytes;
}

Result<TensorInfo> check_tensor(RawTensor raw, std::uint64_t data_start, std::uint64_t data_size,
                                std::string_view what) {
  TensorInfo info;
  info.name = std::move(raw.name);
  const auto row =
      std::find_if(kDtypes.begin(), kDtypes.end(), [&](const auto& r) { return r.name == raw.dtype; });
  if (row == kDtypes.end()) {
    return make_error(ErrorCode::kUnsupported,
                      "{}: tensor {}: dtype \"{}\" found, one of BF16, F32, U32, ... needed", what, info.name,
                      raw.dtype.substr(0, 32));
  }
  info.dtype = row->dtype;
  info.shape = std::move(raw.shape);
  const auto bytes = checked_bytes(info.shape, info.dtype);
  if (!bytes) {
    return make_error(ErrorCode::kCorrupt, "{}: tensor {}: shape {} has more bytes than 64 bits can count",
                      what, info.name, shape_text(info.shape));
  }
  const std::uint64_t begin = raw.begin;
  const std::uint64_t end = raw.end;
  if (begin > end || end > data_size) {
    return make_error(ErrorCode::kCorrupt,
                      "{}: tensor {}: data offsets {} to {} found, the file has {} bytes of data", what,
                      info.name, begin, end, data_size);
  }
  if (end - begin != *bytes) {
    return make_error(ErrorCode::kCorrupt, "{}: tensor {}: {} bytes found, {} needed for {} {}", what,
                      info.name, end - begin, *bytes, row->name, shape_text(info.shape));
  }
  info.offset = data_start + begin;
  info.bytes = *bytes;
  return info;
}

// Some writers pad a tensor to the next multiple of 8 bytes; a larger hole is none of theirs.
constexpr std::uint64_t kMostPadding = 7;

/// The tensors must tile the data, padding aside: anything else is a damaged or a crafted file.
Result<void> check_tiling(const SafetensorsHeader& header, std::uint64_t data_start, std::uint64_t file_size,
                          std::string_view what) {
  std::vector<const TensorInfo*> order;
  order.reserve(header.tensors.size());
  for (const auto& [name, info] : header.tensors) order.push_back(&info);
  std::sort(order.begin(), order.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return a->offset != b->offset ? a->offset < b->offset : a->bytes < b->bytes;
  });
  std::uint64_t end = data_start;
  for (const TensorInfo* info : order) {
    if (info->offset < end || info->offset - end > kMostPadding) {
      return make_error(ErrorCode::kCorrupt, "{}: tensor {}: starts at byte {}, {} needed ({})", what,
                        info->name, info->offset, end,
                        info->offset < end ? "it overlaps another" : "there is a gap before it");
    }
    end = info->offset + info->bytes;
  }
  if (end != file_size) {
    return make_error(ErrorCode::kCorrupt, "{}: {} bytes found, {} needed by its header", what, file_size,
                      end);
  }
  return {};
}

}  // namespace

std::string_view dtype_name(Dtype dtype) {
  for (const auto& row : kDtypes) {
    if (row.dtype == dtype) return row.name;
  }
  return "?";
}

std::int64_t dtype_size(Dtype dtype) {
  for (const auto& row : kDtypes) {
    if (row.dtype == dtype) return row.size;
  }
  return 0;
}

std::int64_t TensorInfo::elements() const {
  return static_cast<std::int64_t>(bytes) / dtype_size(dtype);
}

std::string shape_text(std::span<const std::int64_t> shape) {
  return fmt::format("[{}]", fmt::join(shape.begin(), shape.end(), ", "));
}

Result<SafetensorsHeader> parse_safetensors_header(std::span<const std::byte> head, std::uint64_t file_size,
                                                   std::string_view what) {
  SLUICE_ASSIGN(const std::uint64_t length, check_length(head, file_size, what));
  if (length > head.size() - kLengthBytes) {
    return make_error(ErrorCode::kInvalidArgument, "{}: {} bytes of the header given, {} needed", what,
                      head.size(), kLengthBytes + length);
  }
  const std::string_view text(reinterpret_cast<const char*>(head.data()) + kLengthBytes, length);
  if (text.empty() || text.front() != '{') {
    return make_error(ErrorCode::kCorrupt,
                      "{}: the header does not start with '{{' (not a safetensors file?)", what);
  }
  SafetensorsHeader header;
  std::vector<RawTensor> raw;
  SLUICE_TRY(parse_header_json(text, what, raw, header.metadata));
  const std::uint64_t data_start = kLengthBytes + length;
  for (RawTensor& tensor : raw) {
    SLUICE_ASSIGN(TensorInfo info, check_tensor(std::move(tensor), data_start, file_size - data_start, what));
    std::string name = info.name;
    if (const auto [it, added] = header.tensors.emplace(std::move(name), std::move(info)); !added) {
      return make_error(ErrorCode::kCorrupt, "{}: tensor {} occurs twice in the header", what, it->first);
    }
  }
  SLUICE_TRY(check_tiling(header, data_start, file_size, what));
  return header;
}

Result<std::unique_ptr<SafetensorsFile>> SafetensorsFile::open(const std::filesystem::path& path) {
  SLUICE_ASSIGN(auto file, open_file(path));
  return open(std::move(file));
}

Result<std::unique_ptr<SafetensorsFile>> SafetensorsFile::open(std::unique_ptr<File> file) {
  std::vector<std::byte> head(std::min(file->size(), kLengthBytes));
  SLUICE_TRY(file->read_at(0, head));
  SLUICE_ASSIGN(const std::uint64_t length, check_length(head, file->size(), file->name()));
  head.resize(kLengthBytes + length);
  SLUICE_TRY(file->read_at(0, head));
  SLUICE_ASSIGN(auto header, parse_safetensors_header(head, file->size(), file->name()));
  auto opened = std::make_unique<SafetensorsFile>();
  opened->file_ = std::move(file);
  opened->header_ = std::move(header);
  opened->header_checksum_ = checksum(head);
  return opened;
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto it = header_.tensors.find(name);
  return it == header_.tensors.end() ? nullptr : &it->second;
}

Result<std::vector<std::byte>> SafetensorsFile::read(const TensorInfo& tensor) const {
  std::vector<std::byte> bytes(tensor.bytes);
  SLUICE_TRY(file_->read_at(tensor.offset, bytes));
  return bytes;
}

Result<void> SafetensorsFile::read(const TensorInfo& tensor, std::uint64_t offset,
                                   std::span<std::byte> to) const {
  if (offset > tensor.bytes || to.size() > tensor.bytes - offset) {
    return make_error(ErrorCode::kInvalidArgument, "{}: tensor {}: {} bytes at offset {} needed, it has {}",
                      file_->name(), tensor.name, to.size(), offset, tensor.bytes);
  }
  return file_->read_at(tensor.offset + offset, to);
}

}  // namespace sluice::store

#include <array>
#include <set>

#include "base/json.h"
#include "base/output_file.h"
#include "store/safetensors.h"

namespace sluice::store {
namespace {

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

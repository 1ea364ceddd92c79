#include <cassert>
#include <set>
#include <system_error>

#include "base/json.h"
#include "base/output_file.h"
#include "store/safetensors.h"

namespace sluice::store {
namespace {

std::string quoted(const std::string& text) {
  return dump_json(Json(text));
}

/// The length and the header of a file with these tensors one behind the other.
Result<std::string> make_head(const std::filesystem::path& path, std::span<const TensorPlan> tensors,
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
  for (const TensorPlan& t : tensors) {
    if (t.name == "__metadata__" || !names.insert(t.name).second) {
      return make_error(ErrorCode::kInvalidArgument, "{}: tensor name {} given twice or reserved",
                        path.string(), t.name);
    }
    if (header.back() != '{') header += ',';
    header += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":{},\"data_offsets\":[{},{}]}}", quoted(t.name),
                          dtype_name(t.dtype), shape_text(t.shape), offset, offset + t.bytes());
    offset += t.bytes();
  }
  header += '}';
  // Readers that map the file want the data aligned; the format allows spaces at the end of the header.
  while (header.size() % 8 != 0) header += ' ';
  std::string length(8, '\0');
  for (std::size_t i = 0; i < length.size(); ++i) {
    length[i] = static_cast<char>((header.size() >> (8 * i)) & 0xffU);
  }
  return length + header;
}

}  // namespace

std::uint64_t TensorPlan::bytes() const {
  auto bytes = static_cast<std::uint64_t>(dtype_size(dtype));
  for (const std::int64_t n : shape) bytes *= static_cast<std::uint64_t>(n);
  return bytes;
}

Result<void> write_safetensors(const std::filesystem::path& path, std::span<const TensorData> tensors,
                               const std::map<std::string, std::string>& metadata) {
  std::vector<TensorPlan> plans;
  for (const TensorData& t : tensors) {
    plans.push_back({t.name, t.dtype, t.shape});
    if (const std::uint64_t needed = plans.back().bytes(); needed != t.bytes.size()) {
      return make_error(ErrorCode::kInvalidArgument, "{}: tensor {}: {} bytes given, {} needed for {} {}",
                        path.string(), t.name, t.bytes.size(), needed, dtype_name(t.dtype),
                        shape_text(t.shape));
    }
  }
  SLUICE_ASSIGN(const std::string head, make_head(path, plans, metadata));
  PartFile file(path);
  SLUICE_TRY(file.create());
  SLUICE_TRY(file.write(std::as_bytes(std::span(head))));
  for (const TensorData& t : tensors) SLUICE_TRY(file.write(t.bytes));
  return file.commit();
}

Result<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::create(
    const std::filesystem::path& path, std::span<const TensorPlan> tensors,
    const std::map<std::string, std::string>& metadata) {
  SLUICE_ASSIGN(const std::string head, make_head(path, tensors, metadata));
  std::unique_ptr<SafetensorsWriter> writer(new SafetensorsWriter(path));
  std::uint64_t at = head.size();
  for (const TensorPlan& t : tensors) {
    writer->offsets_.push_back(at);
    at += t.bytes();
  }
  writer->offsets_.push_back(at);
  writer->missing_ = at - head.size();
  SLUICE_ASSIGN(writer->file_, OutputFile::open(writer->temporary_, at));
  SLUICE_TRY(writer->file_->write_at(0, std::as_bytes(std::span(head))));
  return writer;
}

SafetensorsWriter::SafetensorsWriter(std::filesystem::path path) : path_(std::move(path)) {
  temporary_ = path_;
  temporary_ += ".part";
}

SafetensorsWriter::~SafetensorsWriter() {
  std::error_code ignored;
  if (file_) std::filesystem::remove(temporary_, ignored);
}

Result<void> SafetensorsWriter::write(std::size_t tensor, std::uint64_t offset,
                                      std::span<const std::byte> bytes) {
  assert(tensor + 1 < offsets_.size() && offset + bytes.size() <= offsets_[tensor + 1] - offsets_[tensor]);
  SLUICE_TRY(file_->write_at(offsets_[tensor] + offset, bytes));
  missing_ -= bytes.size();
  return {};
}

Result<void> SafetensorsWriter::commit() {
  if (missing_ != 0) {
    return make_error(ErrorCode::kIo, "{}: {} bytes of its tensors not written", path_.string(),
                      missing_.load());
  }
  SLUICE_TRY(file_->sync());
  std::error_code ec;
  std::filesystem::rename(temporary_, path_, ec);
  if (ec) return make_error(ErrorCode::kIo, "{}: renaming: {}", temporary_.string(), ec.message());
  file_.reset();
  sync_folder(path_.has_parent_path() ? path_.parent_path() : ".");
  return {};
}

}  // namespace sluice::store

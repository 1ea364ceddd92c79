#include "store/tensor_index.h"

#include <algorithm>

#include "base/file.h"

namespace sluice::store {

Error TensorRef::wrong(std::string_view found, std::string_view needed, ErrorCode code) const {
  return make_error(code, "{}: tensor {}: {} found, {} needed", file->file().name(), info->name, found,
                    needed);
}

Result<void> TensorRef::need_shape(std::span<const std::int64_t> shape) const {
  if (std::equal(shape.begin(), shape.end(), info->shape.begin(), info->shape.end())) return {};
  return wrong(fmt::format("shape {}", shape_text(info->shape)), shape_text(shape));
}

Result<void> TensorIndex::add(const SafetensorsFile& file) {
  for (const auto& [name, info] : file.header().tensors) {
    MappedName mapped = map_name(name);
    const TensorRef ref{&file, &info};
    if (mapped.naming == Naming::kVision) vision_.push_back(ref);
    if (mapped.canonical.empty()) continue;
    if (mapped.naming != Naming::kShared) {
      if (naming_ && *naming_ != mapped.naming) {
        return ref.wrong("a second naming convention", "one for all tensors");
      }
      naming_ = mapped.naming;
    }
    if (mapped.naming == Naming::kMlx || mapped.canonical.ends_with(".scales") ||
        mapped.canonical.find(".switch_mlp.") != std::string::npos) {
      mlx_ = true;
    }
    const auto [it, added] = tensors_.emplace(std::move(mapped.canonical), ref);
    if (!added) {
      return ref.wrong(fmt::format("a second tensor {} (the first is {} in {})", it->first,
                                   it->second.info->name, it->second.file->file().name()),
                       "one");
    }
  }
  return {};
}

/// Every tensor an index file lists must be in the file it names: a half-updated folder is not a model.
Result<void> TensorIndex::check_listed(const WeightFiles& files) const {
  std::map<std::string, const SafetensorsFile*> by_path;
  for (const auto& file : files_) by_path[file->file().name()] = file.get();
  for (const auto& [tensor, name] : files.listed) {
    const auto it = by_path.find((folder_ / name).string());
    if (it == by_path.end() || it->second->find(tensor) == nullptr) {
      return make_error(ErrorCode::kCorrupt, "{}: tensor {} not found in {}, where the index has it",
                        files.index.string(), tensor, name);
    }
  }
  return {};
}

Result<TensorIndex> TensorIndex::open(const std::filesystem::path& folder, const FileOpener& open_weights) {
  SLUICE_ASSIGN(const WeightFiles files, find_weight_files(folder, static_cast<bool>(open_weights)));
  TensorIndex index;
  index.folder_ = folder;
  for (const auto& path : files.paths) {
    SLUICE_ASSIGN(auto opened, open_weights ? open_weights(path) : open_file(path));
    SLUICE_ASSIGN(auto file, SafetensorsFile::open(std::move(opened)));
    SLUICE_TRY(index.add(*file));
    index.files_.push_back(std::move(file));
  }
  SLUICE_TRY(index.check_listed(files));
  return index;
}

const TensorRef* TensorIndex::find(std::string_view canonical) const {
  const auto it = tensors_.find(canonical);
  return it == tensors_.end() ? nullptr : &it->second;
}

Result<TensorRef> TensorIndex::need(std::string_view canonical, std::span<const std::int64_t> shape) const {
  const TensorRef* ref = find(canonical);
  if (ref != nullptr) return *ref;
  return make_error(ErrorCode::kNotFound, "{}: tensor {} not found, {} needed", folder_.string(), canonical,
                    shape_text(shape));
}

std::size_t TensorIndex::file_number(const SafetensorsFile& file) const {
  const auto it = std::find_if(files_.begin(), files_.end(), [&](const auto& f) { return f.get() == &file; });
  return static_cast<std::size_t>(it - files_.begin());
}

bool TensorIndex::has_prefix(std::string_view prefix) const {
  const auto it = tensors_.lower_bound(prefix);
  return it != tensors_.end() && it->first.starts_with(prefix);
}

}  // namespace sluice::store

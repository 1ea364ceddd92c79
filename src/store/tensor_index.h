// All tensors of a checkpoint folder under canonical names, whatever files they lie in.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "store/name_map.h"
#include "store/safetensors.h"

namespace sluice::store {

/// Opens weight files that lie elsewhere than in the folder.
using FileOpener = std::function<Result<std::unique_ptr<File>>(const std::filesystem::path&)>;

/// A tensor and the file that holds it. Valid as long as the index.
struct TensorRef {
  const SafetensorsFile* file = nullptr;
  const TensorInfo* info = nullptr;

  /// "file: tensor NAME: FOUND found, NEEDED needed" with the name as in the file.
  [[nodiscard]] Error wrong(std::string_view found, std::string_view needed,
                            ErrorCode code = ErrorCode::kCorrupt) const;
  /// Checks the shape; the error shows both.
  [[nodiscard]] Result<void> need_shape(std::span<const std::int64_t> shape) const;
};

/// The files of a folder that hold its weights.
struct WeightFiles {
  std::vector<std::filesystem::path> paths;
  std::filesystem::path index;                              // the index file; empty without one
  std::vector<std::pair<std::string, std::string>> listed;  // what it says: tensor, file
};

/// What the index file lists, or model.safetensors, or numbered shards (all of them). Other *.safetensors in
/// the folder are not weights.
/// Whether they exist is not asked when `remote`.
Result<WeightFiles> find_weight_files(const std::filesystem::path& folder, bool remote = false);

class TensorIndex {
 public:
  /// Opens every weight file of the folder and checks that an index file, if any, is true.
  static Result<TensorIndex> open(const std::filesystem::path& folder, const FileOpener& open_weights = {});

  /// The tensor under a canonical name, or nullptr.
  [[nodiscard]] const TensorRef* find(std::string_view canonical) const;
  /// The tensor, or kNotFound naming the folder, the tensor and its shape.
  [[nodiscard]] Result<TensorRef> need(std::string_view canonical, std::span<const std::int64_t> shape) const;

  [[nodiscard]] const std::map<std::string, TensorRef, std::less<>>& tensors() const { return tensors_; }
  [[nodiscard]] const std::vector<TensorRef>& vision() const { return vision_; }
  [[nodiscard]] const std::vector<std::unique_ptr<SafetensorsFile>>& files() const { return files_; }
  /// The place of a file in files().
  [[nodiscard]] std::size_t file_number(const SafetensorsFile& file) const;
  /// Whether any canonical name starts with `prefix`.
  [[nodiscard]] bool has_prefix(std::string_view prefix) const;
  /// MLX forms may carry folded norms (model.md 2.4): by the names, or by quantised or stacked tensors.
  [[nodiscard]] bool is_mlx() const { return mlx_; }
  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }

 private:
  Result<void> add(const SafetensorsFile& file);
  [[nodiscard]] Result<void> check_listed(const WeightFiles& files) const;

  std::filesystem::path folder_;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, TensorRef, std::less<>> tensors_;
  std::vector<TensorRef> vision_;
  std::optional<Naming> naming_;  // of the trunk
  bool mlx_ = false;
};

}  // namespace sluice::store

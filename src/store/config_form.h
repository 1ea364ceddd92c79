// What the weights of a model are taken to be while only its config is there.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "store/dense_table.h"
#include "store/source.h"

namespace sluice::store {

/// The form of a checkpoint as its config announces it: bfloat16, or, with a `quantization`, each matrix as
/// that says. Parts that a converter leaves as they are (routers and the like, what groups do not divide) are
/// taken to be bfloat16.
class ConfigForm final : public SourceForm {
 public:
  explicit ConfigForm(const spec::ModelConfig& config);

  [[nodiscard]] const spec::ModelConfig& config() const override { return config_; }
  [[nodiscard]] const Json& config_json() const override { return config_json_; }
  [[nodiscard]] const std::filesystem::path& folder() const override { return folder_; }
  [[nodiscard]] std::string form() const override { return "config"; }
  [[nodiscard]] std::vector<SourceFile> files() const override { return {}; }
  [[nodiscard]] std::vector<std::string> missing() const override { return {}; }
  [[nodiscard]] bool has_mtp() const override { return config_.mtp_layers > 0; }
  Result<DenseFormat> dense_format(std::string_view name) const override;
  [[nodiscard]] const std::vector<spec::RecordLayout>& record_layouts() const override { return layouts_; }
  Result<spec::NgramHash> ngram_hash(std::int64_t layer) const override;
  Result<spec::NgramLayout> ngram_layout(std::int64_t layer) const override;
  [[nodiscard]] std::uint64_t ngram_bytes(std::int64_t layer) const override;

 private:
  [[nodiscard]] DenseFormat affine_or_plain(std::string_view name, std::int64_t columns) const;

  const spec::ModelConfig& config_;
  Json config_json_;                                      // none
  std::filesystem::path folder_;                          // none: what errors call it
  std::optional<spec::QuantizationConfig> quantization_;  // with canonical names
  std::map<std::string, DenseInfo, std::less<>> dense_;
  std::vector<spec::RecordLayout> layouts_;
};

}  // namespace sluice::store

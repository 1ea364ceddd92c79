#include "store/config_form.h"

#include <algorithm>

#include "store/matrix.h"

namespace sluice::store {

using spec::Format;

ConfigForm::ConfigForm(const spec::ModelConfig& config)
    : config_(config), folder_("config"), quantization_(canonical_quantization(config.quantization)) {
  spec::RecordLayout layout{{config.hidden, config.expert_inter, 64}, Format::kBf16};
  const auto experts = affine_or_plain("layers.0.mlp.switch_mlp", config.hidden);
  if (spec::is_quantised(experts.format) && config.expert_inter % experts.group == 0) {
    layout.format = experts.format;
    layout.geometry.group = experts.group;
  }
  layouts_ = {layout};
  for (DenseInfo& info : dense_tensors(config_, has_mtp())) {
    std::string tensor = info.name;
    dense_.emplace(std::move(tensor), std::move(info));
  }
}

/// As the files of a quantised model have a matrix of that name.
DenseFormat ConfigForm::affine_or_plain(std::string_view name, std::int64_t columns) const {
  const DenseFormat plain{Format::kBf16, 64};
  if (!quantization_) return plain;
  const spec::AffineFormat file = quantization_->format_of(name);
  if ((file.bits != 4 && file.bits != 8) || file.group < 32 || columns % file.group != 0) return plain;
  return {file.bits == 4 ? Format::kQ4 : Format::kQ8, file.group};
}

Result<DenseFormat> ConfigForm::dense_format(std::string_view name) const {
  const auto it = dense_.find(name);
  if (it == dense_.end()) {
    return make_error(ErrorCode::kNotFound, "config: no dense tensor {} in this model", name);
  }
  const DenseInfo& info = it->second;
  if (info.kind != DenseKind::kMatrix) return DenseFormat{Format::kF32, 64};
  // What steers a token's path stays as it is unless the config names it.
  const bool steers = !spec::is_quantised(packed_dense_format(info, DenseBits::kQ4, Format::kBf16).format);
  if (steers && quantization_ && quantization_->format_of(name) == quantization_->standard) {
    return DenseFormat{Format::kBf16, 64};
  }
  return affine_or_plain(name, info.shape.back());
}

Result<spec::NgramHash> ConfigForm::ngram_hash(std::int64_t layer) const {
  if (config_.ple) {
    const auto& layers = config_.ple->layers;
    const auto it = std::find(layers.begin(), layers.end(), layer);
    if (it != layers.end()) return spec::derive_ngram_hash(config_, it - layers.begin());
  }
  return make_error(ErrorCode::kInvalidArgument, "config: layer {} has no n-gram embedding", layer);
}

Result<spec::NgramLayout> ConfigForm::ngram_layout(std::int64_t layer) const {
  SLUICE_ASSIGN(const spec::NgramHash hash, ngram_hash(layer));
  const std::int64_t columns = config_.ple->head_dim();
  const std::string name = fmt::format("layers.{}.ple.ple_embedding.ngram_embedding", layer);
  const DenseFormat rows = affine_or_plain(name, columns);
  return spec::NgramLayout{rows.format, rows.group, columns, hash.rows};
}

std::uint64_t ConfigForm::ngram_bytes(std::int64_t layer) const {
  const auto layout = ngram_layout(layer);
  return layout.ok() ? static_cast<std::uint64_t>(layout->rows * layout->row_bytes()) : 0;
}

}  // namespace sluice::store

#include "pack/importance.h"

#include <cmath>

#include "store/safetensors.h"

namespace sluice::pack {
namespace {

/// A float32 tensor of a shape, all finite and, if asked, not negative.
Result<std::vector<float>> read_tensor(const store::SafetensorsFile& file, const std::string& name,
                                       const std::vector<std::int64_t>& shape, bool squares = true) {
  const store::TensorInfo* info = file.find(name);
  if (info == nullptr || info->dtype != store::Dtype::kF32 || info->shape != shape) {
    return make_error(ErrorCode::kCorrupt, "{}: tensor {}: {} found, F32 {} needed", file.file().name(), name,
                      info == nullptr ? "none" : store::shape_text(info->shape), store::shape_text(shape));
  }
  std::vector<float> values(static_cast<std::size_t>(info->elements()));
  SLUICE_TRY(file.read(*info, 0, std::as_writable_bytes(std::span(values))));
  for (const float value : values) {
    if (std::isfinite(value) && (value >= 0 || !squares)) continue;
    return make_error(ErrorCode::kCorrupt, "{}: tensor {}: {} found, {} needed", file.file().name(), name,
                      value, squares ? "sums of squares" : "finite sums");
  }
  return values;
}

/// Rows that the mean of a wider set counts as beside an expert's own, which may be few.
constexpr double kPrior = 16;
/// Added to correlations' diagonal, as is usual for error feedback: they were measured on a text.
constexpr double kDamping = 0.01;

/// From sums of squares over `count` rows an expert to means. The wider set is the layer's experts for inputs
/// that all of them have in common, and the expert's other inputs for its own; experts without rows get the
/// layer's mean.
void to_means(std::vector<float>& sums, const std::vector<float>& count, std::size_t width, bool common) {
  std::vector<double> all(width, 0);
  double rows = 0;
  for (std::size_t e = 0; e < count.size(); ++e) {
    rows += double{count[e]};
    for (std::size_t i = 0; i < width; ++i) all[i] += double{sums[e * width + i]};
  }
  for (double& mean : all) mean = rows > 0 ? mean / rows : 0;
  for (std::size_t e = 0; e < count.size(); ++e) {
    double own = 0;
    for (std::size_t i = 0; i < width; ++i) own += double{sums[e * width + i]};
    if (count[e] > 0) own /= static_cast<double>(width) * double{count[e]};
    for (std::size_t i = 0; i < width; ++i) {
      const double prior = common || count[e] == 0 ? all[i] : own;
      float& value = sums[e * width + i];
      value = static_cast<float>((double{value} + kPrior * prior) / (double{count[e]} + kPrior));
    }
  }
}

}  // namespace

Result<std::unique_ptr<Importance>> Importance::load(const std::filesystem::path& path,
                                                     const spec::ModelConfig& config) {
  SLUICE_ASSIGN(const auto file, store::SafetensorsFile::open(path));
  auto importance = std::make_unique<Importance>();
  importance->hidden_ = config.hidden;
  importance->inter_ = config.expert_inter;
  for (std::int64_t layer = 0; layer < config.record_layers(); ++layer) {
    const std::string prefix = fmt::format("experts.{}.", layer);
    Layer& entry = importance->layers_.emplace_back();
    // The draft head's layer is measured only where there is one.
    if (layer >= config.layer_count() && file->find(prefix + "count") == nullptr) continue;
    SLUICE_ASSIGN(const auto count, read_tensor(*file, prefix + "count", {config.experts}));
    SLUICE_ASSIGN(entry.hidden, read_tensor(*file, prefix + "hidden", {config.experts, config.hidden}));
    SLUICE_ASSIGN(entry.inter, read_tensor(*file, prefix + "inter", {config.experts, config.expert_inter}));
    to_means(entry.hidden, count, static_cast<std::size_t>(config.hidden), true);
    to_means(entry.inter, count, static_cast<std::size_t>(config.expert_inter), false);
    // Files of other makers may have squares alone.
    if (file->find(prefix + "inter_mean") != nullptr) {
      SLUICE_ASSIGN(entry.inter_mean,
                    read_tensor(*file, prefix + "inter_mean", {config.experts, config.expert_inter}, false));
      for (std::size_t i = 0; i < entry.inter_mean.size(); ++i) {
        const double rows = double{count[i / static_cast<std::size_t>(config.expert_inter)]};
        entry.inter_mean[i] = static_cast<float>(double{entry.inter_mean[i]} / (rows + kPrior));
      }
    }
    if (file->find(prefix + "moment") != nullptr) {
      const std::int64_t triangle = config.hidden * (config.hidden + 1) / 2;
      SLUICE_ASSIGN(const auto moment, read_tensor(*file, prefix + "moment", {triangle}, false));
      auto factor = quant::InputFactor::of_moment(config.hidden, moment, kDamping);
      if (!factor.ok()) {
        return make_error(ErrorCode::kCorrupt, "{}: tensor {}moment: {}", file->file().name(), prefix,
                          factor.error().message);
      }
      entry.factor = std::move(factor).value();
    }
  }
  return importance;
}

std::span<const float> Importance::hidden(std::int64_t layer, std::int64_t expert) const {
  const auto& values = layers_[static_cast<std::size_t>(layer)].hidden;
  if (values.empty()) return {};
  return std::span(values).subspan(static_cast<std::size_t>(expert * hidden_),
                                   static_cast<std::size_t>(hidden_));
}

std::span<const float> Importance::inter(std::int64_t layer, std::int64_t expert) const {
  const auto& values = layers_[static_cast<std::size_t>(layer)].inter;
  if (values.empty()) return {};
  return std::span(values).subspan(static_cast<std::size_t>(expert * inter_),
                                   static_cast<std::size_t>(inter_));
}

const quant::InputFactor* Importance::hidden_factor(std::int64_t layer) const {
  const auto& factor = layers_[static_cast<std::size_t>(layer)].factor;
  return factor ? &*factor : nullptr;
}

std::span<const float> Importance::inter_mean(std::int64_t layer, std::int64_t expert) const {
  const auto& values = layers_[static_cast<std::size_t>(layer)].inter_mean;
  if (values.empty()) return {};
  return std::span(values).subspan(static_cast<std::size_t>(expert * inter_),
                                   static_cast<std::size_t>(inter_));
}

}  // namespace sluice::pack

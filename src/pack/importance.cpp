#include "pack/importance.h"

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "store/safetensors.h"

namespace sluice::pack {
namespace {

Result<std::vector<float>> read_any(const store::SafetensorsFile& file, const std::string& name,
                                       const std::vector<std::int64_t>& shape) {
  const store::TensorInfo* info = file.find(name);
  if (info == nullptr || info->dtype != store::Dtype::kF32 || info->shape != shape) {
    return make_error(ErrorCode::kCorrupt, "{}: tensor {}: {} found, F32 {} needed", file.file().name(), name,
                      info == nullptr ? "none" : store::shape_text(info->shape), store::shape_text(shape));
  }
  std::vector<float> values(static_cast<std::size_t>(info->elements()));
  SLUICE_TRY(file.read(*info, 0, std::as_writable_bytes(std::span(values))));
  return values;
}

/// A float32 tensor of a shape, all finite and not negative.
Result<std::vector<float>> read_tensor(const store::SafetensorsFile& file, const std::string& name,
                                       const std::vector<std::int64_t>& shape) {
  const store::TensorInfo* info = file.find(name);
  if (info == nullptr || info->dtype != store::Dtype::kF32 || info->shape != shape) {
    return make_error(ErrorCode::kCorrupt, "{}: tensor {}: {} found, F32 {} needed", file.file().name(), name,
                      info == nullptr ? "none" : store::shape_text(info->shape), store::shape_text(shape));
  }
  std::vector<float> values(static_cast<std::size_t>(info->elements()));
  SLUICE_TRY(file.read(*info, 0, std::as_writable_bytes(std::span(values))));
  for (const float value : values) {
    if (std::isfinite(value) && value >= 0) continue;
    return make_error(ErrorCode::kCorrupt, "{}: tensor {}: {} found, mean squares needed", file.file().name(),
                      name, value);
  }
  return values;
}

/// Rows that the mean of a wider set counts as, beside an expert's own.
double kPrior = 0;

enum class Prior { kLayer, kFlat };

/// From sums over `count` rows an expert to means; experts without rows get the layer's mean.
void to_means(std::vector<float>& sums, const std::vector<float>& count, std::size_t width, Prior prior) {
  std::vector<double> all(width, 0);
  double rows = 0;
  for (std::size_t e = 0; e < count.size(); ++e) {
    rows += double{count[e]};
    for (std::size_t i = 0; i < width; ++i) all[i] += double{sums[e * width + i]};
  }
  for (std::size_t e = 0; e < count.size(); ++e) {
    double flat = 0;
    for (std::size_t i = 0; i < width; ++i) flat += double{sums[e * width + i]};
    flat = count[e] > 0 ? flat / static_cast<double>(width) / double{count[e]} : 0;
    for (std::size_t i = 0; i < width; ++i) {
      float& value = sums[e * width + i];
      const double wide = prior == Prior::kFlat && count[e] > 0 ? flat : rows > 0 ? all[i] / rows : 0;
      value = count[e] + kPrior > 0 ? static_cast<float>((double{value} + kPrior * wide) / (double{count[e]} + kPrior)) : static_cast<float>(wide);
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
    const char* x = std::getenv("SLUICE_X");
    const auto has = [&](char c) { return x && std::strchr(x, c); };
    if (const char* k = std::getenv("SLUICE_PRIOR")) kPrior = std::atof(k);
    const char* damping = std::getenv("SLUICE_DAMP");
    to_means(entry.hidden, count, static_cast<std::size_t>(config.hidden), Prior::kLayer);
    to_means(entry.inter, count, static_cast<std::size_t>(config.expert_inter), Prior::kFlat);
    if (has('m')) {
      SLUICE_ASSIGN(entry.inter_mean, read_any(*file, prefix + "inter_mean", {config.experts, config.expert_inter}));
      for (std::size_t i = 0; i < entry.inter_mean.size(); ++i) {
        const float c = count[i / static_cast<std::size_t>(config.expert_inter)];
        entry.inter_mean[i] = c > 0 ? entry.inter_mean[i] / (c + static_cast<float>(kPrior)) : 0;
      }
    }
    if (has('f')) {
      SLUICE_ASSIGN(const auto moment, read_any(*file, prefix + "moment", {config.hidden * (config.hidden + 1) / 2}));
      SLUICE_ASSIGN(entry.factor, quant::InputFactor::of_moment(config.hidden, moment, damping ? std::atof(damping) : 0.01));
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

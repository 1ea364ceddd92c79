// How much each input of the experts' matrices matters, as measured on a text.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "quant/feedback.h"
#include "spec/config.h"

namespace sluice::pack {

/// Mean squares of what an expert's matrices were given, the weight of an error in a column, and how inputs
/// go together. Rows are counted as if 16 more had been like the layer's mean (inputs of gate and up) or the
/// expert's mean over its inputs (down), so that few rows do not say too much.
class Importance {
 public:
  /// Reads what `eval --collect-importance` wrote; it must be of this geometry.
  static Result<std::unique_ptr<Importance>> load(const std::filesystem::path& path,
                                                  const spec::ModelConfig& config);

  /// Of the inputs of gate and up [hidden]; empty for a layer that was not measured.
  [[nodiscard]] std::span<const float> hidden(std::int64_t layer, std::int64_t expert) const;
  /// Of the inputs of down [inter].
  [[nodiscard]] std::span<const float> inter(std::int64_t layer, std::int64_t expert) const;
  /// How the inputs of gate and up go together in a layer; null where that was not measured.
  [[nodiscard]] const quant::InputFactor* hidden_factor(std::int64_t layer) const;
  /// Mean inputs of down [inter]; empty where that was not measured.
  [[nodiscard]] std::span<const float> inter_mean(std::int64_t layer, std::int64_t expert) const;

 private:
  struct Layer {
    std::vector<float> hidden, inter, inter_mean;  // [experts][width]
    std::optional<quant::InputFactor> factor;
  };
  std::int64_t hidden_ = 0, inter_ = 0;
  std::vector<Layer> layers_;
};

}  // namespace sluice::pack

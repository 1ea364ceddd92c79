#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace sluice::model {
namespace {

// YaRN: frequencies that turn many times within the original context keep their speed, slow ones are
// stretched by the factor, with a linear ramp between (Peng et al. 2023, section 3.2).
void apply_yarn(const spec::RopeConfig& config, std::vector<float>& frequencies) {
  const auto dims = static_cast<double>(config.rotary_dims);
  const auto turns_at = [&](double turns) {
    return dims *
           std::log(static_cast<double>(config.original_max_positions) / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(config.theta));
  };
  double low = turns_at(config.beta_fast);
  double high = turns_at(config.beta_slow);
  if (config.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dims - 1);
  if (low == high) high += 0.001;
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const auto ramp = static_cast<float>(std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0));
    const float stretched = frequencies[i] / static_cast<float>(config.factor);
    frequencies[i] = stretched * ramp + frequencies[i] * (1 - ramp);
  }
}

}  // namespace

RopeTable::RopeTable(const spec::RopeConfig& config) {
  const std::int64_t half = config.rotary_dims / 2;
  frequencies_.reserve(static_cast<std::size_t>(half));
  for (std::int64_t j = 0; j < half; ++j) {
    // In float32 as the reference computes it: its rounding shows at positions in the hundred thousands.
    const float exponent = static_cast<float>(2 * j) / static_cast<float>(config.rotary_dims);
    frequencies_.push_back(1.0F / std::pow(static_cast<float>(config.theta), exponent));
  }
  if (config.type == spec::RopeType::kLinear) {
    for (float& f : frequencies_) f /= static_cast<float>(config.factor);
  } else if (config.type == spec::RopeType::kYarn) {
    apply_yarn(config, frequencies_);
    scale_ = static_cast<float>(
        config.attention_factor.value_or(config.factor > 1 ? 0.1 * std::log(config.factor) + 1 : 1.0));
  }
}

void RopeTable::fill(std::span<const std::int64_t> positions, std::vector<float>& cos,
                     std::vector<float>& sin) const {
  cos.clear();
  sin.clear();
  for (const std::int64_t position : positions) {
    for (const float frequency : frequencies_) {
      const float angle = static_cast<float>(position) * frequency;
      cos.push_back(static_cast<float>(std::cos(static_cast<double>(angle))) * scale_);
      sin.push_back(static_cast<float>(std::sin(static_cast<double>(angle))) * scale_);
    }
  }
}

}  // namespace sluice::model

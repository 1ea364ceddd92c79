// Rotary frequencies and tables (model.md 3.5, 1.5).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "spec/config.h"

namespace sluice::model {

/// Frequencies of one rotary setting. Text positions are equal on all three M-RoPE axes, so the axis an
/// index belongs to makes no difference here.
class RopeTable {
 public:
  RopeTable() = default;
  explicit RopeTable(const spec::RopeConfig& config);

  /// cos and sin of each position: rows of dims / 2 float32 values, in float32 like the reference.
  void fill(std::span<const std::int64_t> positions, std::vector<float>& cos, std::vector<float>& sin) const;
  [[nodiscard]] std::int64_t dims() const { return static_cast<std::int64_t>(frequencies_.size()) * 2; }

 private:
  std::vector<float> frequencies_;  // [dims / 2]
  float scale_ = 1;                 // attention factor of YaRN, on cos and sin
};

}  // namespace sluice::model

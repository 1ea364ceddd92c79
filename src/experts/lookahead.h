// Whether reading a layer's experts before they are wanted pays, by what came of it so far.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluice::experts {

/// Keeps, a layer, how many of the records that were read ahead were wanted, and whether records have to be
/// read at all. A prediction costs a router, and reads that are in vain delay others: below kLeastUseful it
/// is given up, and tried again now and then, since texts change.
class Lookahead {
 public:
  static constexpr double kLeastUseful = 0.4;
  static constexpr std::uint64_t kTryEvery = 64;  // steps

  explicit Lookahead(std::int64_t layers) : layers_(static_cast<std::size_t>(layers)) {}

  [[nodiscard]] bool pays(std::int64_t layer, std::uint64_t step) const {
    const Layer& one = layers_[static_cast<std::size_t>(layer)];
    if (one.read < kFewReads) return false;
    return one.useful >= kLeastUseful || step % kTryEvery == 0;
  }
  /// A record of the layer's was begun to be read ahead.
  void predicted(std::int64_t layer, std::uint32_t expert) {
    layers_[static_cast<std::size_t>(layer)].begun.push_back(expert);
  }
  /// What was begun for a layer.
  [[nodiscard]] std::span<const std::uint32_t> begun(std::int64_t layer) const {
    return layers_[static_cast<std::size_t>(layer)].begun;
  }
  /// The layer's turn came: `useful` of what was begun was wanted, and `read` records were not in memory
  /// before.
  void came(std::int64_t layer, std::size_t useful, std::size_t read) {
    Layer& one = layers_[static_cast<std::size_t>(layer)];
    if (!one.begun.empty()) {
      const double share = static_cast<double>(useful) / static_cast<double>(one.begun.size());
      one.useful += (share - one.useful) * kFollow;
      one.begun.clear();
    }
    one.read += (static_cast<double>(read) - one.read) * kFollow;
  }
  [[nodiscard]] double useful(std::int64_t layer) const {
    return layers_[static_cast<std::size_t>(layer)].useful;
  }

 private:
  static constexpr double kFollow = 1.0 / 16;    // weight of the newest
  static constexpr double kFewReads = 1.0 / 16;  // records a step: below there is nothing to hide
  struct Layer {
    double useful = 1;  // believed until it is known
    double read = 1;
    std::vector<std::uint32_t> begun;
  };
  std::vector<Layer> layers_;
};

}  // namespace sluice::experts

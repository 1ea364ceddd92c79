// Which records are worth keeping: recency and frequency in one number.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice::experts {

/// Every touch of a record at time t is worth weight * 2^(t / half_life): a record's heat is the logarithm of
/// the sum. Seen from any later time all touches have lost value at the same rate, so comparing two heats
/// never needs the present time, and the order of resting records does not change (cf. LRFU, Lee et al.
/// 2001).
class Heat {
 public:
  /// Colder than any touch, yet a number that exp2 takes.
  static constexpr double kNever = -1e9;

  Heat(std::size_t records, double half_life) : half_life_(half_life), heat_(records, kNever) {}

  /// Time goes on by one step of decoding.
  void tick() { now_ += 1 / half_life_; }
  /// `weight` above 0; a prefill's touch is worth less than a decode step's.
  void touch(std::int64_t record, double weight) {
    heat_[static_cast<std::size_t>(record)] = would_be(record, weight);
  }
  /// The heat after such a touch.
  [[nodiscard]] double would_be(std::int64_t record, double weight) const {
    const double heat = of(record);
    const double touched = now_ + std::log2(weight);
    const double high = std::max(heat, touched);
    const double low = std::min(heat, touched);
    return high + std::log2(1 + std::exp2(low - high));
  }
  [[nodiscard]] double of(std::int64_t record) const { return heat_[static_cast<std::size_t>(record)]; }

  /// Heats of the first `records` as seen from the present, to be kept; kNever for what was never touched.
  [[nodiscard]] std::vector<float> relative(std::int64_t records) const {
    std::vector<float> all(static_cast<std::size_t>(records));
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i] = static_cast<float>(heat_[i] <= kNever ? kNever : heat_[i] - now_);
    }
    return all;
  }
  /// Takes over kept heats, of the first records.
  void resume(std::span<const float> relative) {
    for (std::size_t i = 0; i < relative.size() && i < heat_.size(); ++i) {
      heat_[i] = relative[i] <= static_cast<float>(kNever) ? kNever : now_ + static_cast<double>(relative[i]);
    }
  }

 private:
  double half_life_;
  double now_ = 0;
  std::vector<double> heat_;
};

}  // namespace sluice::experts

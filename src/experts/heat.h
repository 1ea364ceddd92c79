// Which records are worth keeping: recency and frequency in one number.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace sluice::experts {

/// Every touch of a record at time t is worth weight * 2^(t / half_life): a record's heat is the logarithm of
/// the sum. Seen from any later time all touches have lost value at the same rate, so comparing two heats
/// never needs the present time, and the order of resting records does not change (cf. LRFU, Lee et al.
/// 2001).
class Heat {
 public:
  Heat(std::size_t records, double half_life) : half_life_(half_life), heat_(records, kNever) {}

  /// Time goes on by one step of decoding.
  void tick() { now_ += 1 / half_life_; }
  /// `weight` above 0; a prefill's touch is worth less than a decode step's.
  void touch(std::int64_t record, double weight) {
    double& heat = heat_[static_cast<std::size_t>(record)];
    const double touched = now_ + std::log2(weight);
    const double high = std::max(heat, touched);
    const double low = std::min(heat, touched);
    heat = high + std::log2(1 + std::exp2(low - high));
  }
  [[nodiscard]] double of(std::int64_t record) const { return heat_[static_cast<std::size_t>(record)]; }

 private:
  /// Colder than any touch, yet a number that exp2 takes.
  static constexpr double kNever = -1e9;

  double half_life_;
  double now_ = 0;
  std::vector<double> heat_;
};

}  // namespace sluice::experts

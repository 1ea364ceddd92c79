// Routes made up by a simple law (policy_trace.h).
#include <algorithm>
#include <cmath>
#include <numeric>

#include "experts/policy_trace.h"

namespace sluice::experts {
namespace {

/// SplitMix64: the same numbers everywhere.
class Numbers {
 public:
  explicit Numbers(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }
  /// In [0, 1).
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }
  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(next() % bound); }

 private:
  std::uint64_t state_;
};

class Maker {
 public:
  explicit Maker(const SyntheticOptions& options)
      : options_(options),
        numbers_(options.seed),
        experts_(static_cast<std::size_t>(options.experts)),
        orders_(static_cast<std::size_t>(options.layers)),
        favourites_(orders_.size()),
        before_(orders_.size()) {
    double sum = 0;
    for (std::size_t rank = 0; rank < experts_; ++rank) {
      sum += std::pow(static_cast<double>(rank + 1), -options.exponent);
      reach_.push_back(sum);
    }
    for (auto& order : orders_) {
      order.resize(experts_);
      std::iota(order.begin(), order.end(), 0U);
      for (std::size_t i = experts_ - 1; i > 0; --i) std::swap(order[i], order[numbers_.below(i + 1)]);
    }
    trace_.shape = {options.layers, options.experts, options.top, options.record_bytes};
  }

  RouteTrace make() {
    for (std::int64_t step = 0; step < options_.steps; ++step) {
      if (step % options_.conversation == 0) begin_conversation();
      add_step(Use::kDecode, 1);
    }
    return std::move(trace_);
  }

 private:
  void begin_conversation() {
    const auto moves = static_cast<std::size_t>(options_.drift * static_cast<double>(experts_) / 2);
    for (std::size_t layer = 0; layer < orders_.size(); ++layer) {
      for (std::size_t i = 0; i < moves; ++i) {
        std::swap(orders_[layer][numbers_.below(experts_)], orders_[layer][numbers_.below(experts_)]);
      }
      favourites_[layer].clear();
      for (std::int64_t i = 0; i < 4 * options_.top; ++i) {
        favourites_[layer].push_back(static_cast<std::uint32_t>(numbers_.below(experts_)));
      }
      before_[layer].clear();
    }
    add_step(Use::kPrefill, options_.prompt);
  }

  std::uint32_t choose(std::size_t layer) {
    const double kind = numbers_.unit();
    if (kind < options_.repeated && !before_[layer].empty()) {
      return before_[layer][numbers_.below(before_[layer].size())];
    }
    if (kind < options_.repeated + options_.favourites) {
      return favourites_[layer][numbers_.below(favourites_[layer].size())];
    }
    const auto rank = std::upper_bound(reach_.begin(), reach_.end(), numbers_.unit() * reach_.back());
    return orders_[layer][std::min(static_cast<std::size_t>(rank - reach_.begin()), experts_ - 1)];
  }

  void add_step(Use use, std::int64_t rows) {
    trace_.begin_step(use, static_cast<std::uint32_t>(rows));
    std::vector<std::uint32_t> count(experts_);
    std::vector<std::uint32_t> chosen;
    for (std::size_t layer = 0; layer < orders_.size(); ++layer) {
      std::fill(count.begin(), count.end(), 0U);
      for (std::int64_t row = 0; row < rows; ++row) {
        chosen.clear();
        while (chosen.size() < static_cast<std::size_t>(options_.top)) {
          const std::uint32_t id = choose(layer);
          if (std::find(chosen.begin(), chosen.end(), id) == chosen.end()) chosen.push_back(id);
        }
        for (const std::uint32_t id : chosen) ++count[id];
        before_[layer] = chosen;
      }
      trace_.begin_layer(static_cast<std::uint32_t>(layer));
      for (std::size_t id = 0; id < experts_; ++id) {
        if (count[id] == 0) continue;
        trace_.ids.push_back(static_cast<std::uint32_t>(id));
        trace_.rows.push_back(count[id]);
      }
    }
  }

  SyntheticOptions options_;
  Numbers numbers_;
  std::size_t experts_;
  std::vector<double> reach_;                           // [experts] sums of the Zipf law
  std::vector<std::vector<std::uint32_t>> orders_;      // [layers][experts], the most popular first
  std::vector<std::vector<std::uint32_t>> favourites_;  // [layers]
  std::vector<std::vector<std::uint32_t>> before_;      // [layers] of the row before
  RouteTrace trace_;
};

}  // namespace

RouteTrace synthetic_trace(const SyntheticOptions& options) {
  return Maker(options).make();
}

}  // namespace sluice::experts

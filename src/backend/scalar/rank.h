// The one order in which values are chosen: a total order, so that every choice has one answer.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace sluice::backend::scalar {

/// Whether element a goes before element b: the larger value first, equal values by the lower index, NaN
/// after every number.
inline bool ranks_before(const float* values, std::uint32_t a, std::uint32_t b) {
  const float x = values[a];
  const float y = values[b];
  if (std::isnan(x) || std::isnan(y)) {
    if (std::isnan(x) && std::isnan(y)) return a < b;
    return std::isnan(y);
  }
  if (x != y) return x > y;
  return a < b;
}

/// The first `k` indices of values[0 .. n) in that order; all of them if k >= n.
inline std::vector<std::uint32_t> top_k(const float* values, std::int64_t n, std::int64_t k) {
  std::vector<std::uint32_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), 0U);
  const auto middle = order.begin() + std::min(n, k);
  std::partial_sort(order.begin(), middle, order.end(),
                    [values](std::uint32_t a, std::uint32_t b) { return ranks_before(values, a, b); });
  order.erase(middle, order.end());
  return order;
}

}  // namespace sluice::backend::scalar

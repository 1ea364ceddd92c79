// When a second thread pays off.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cpu/cpu_backend.h"

namespace sluice::backend {

// Rough costs on one core of 2022, in nanoseconds: only their order of magnitude matters.
constexpr double kPerElement = 0.15;  // load, a few operations, store
constexpr double kPerFunction = 0.4;  // with an exponential
constexpr double kPerWeight = 0.06;   // decode a weight and multiply it with one row

/// Nanoseconds a weight costs when `rows` rows share it: each further row costs a third.
constexpr double weight_cost(std::int64_t rows) {
  return kPerWeight * static_cast<double>(2 + rows) / 3;
}

/// Handing work to another thread costs 2 to 5 microseconds.
constexpr double kWorthAThread = 8000;

template <class Fn>
void CpuBackend::split(std::int64_t count, double nanoseconds, const Fn& fn) {
  if (count <= 0) return;
  const auto grain = static_cast<std::size_t>(std::max(1.0, kWorthAThread / nanoseconds));
  team_.parallel_for(static_cast<std::size_t>(count), grain,
                     [&fn](int thread, std::size_t begin, std::size_t end) {
                       fn(thread, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end));
                     });
}

}  // namespace sluice::backend

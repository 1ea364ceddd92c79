// When a second thread pays off.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/cpu/cpu_backend.h"

namespace sluice::backend {

// Rough costs on one core of 2022, in nanoseconds: only their order of magnitude matters.
constexpr double kPerElement = 0.1;    // load, a few operations, store
constexpr double kPerFunction = 0.45;  // with an exponential
constexpr double kPerWeight = 0.06;    // decode a weight and multiply it with one row

/// Nanoseconds a weight costs when `rows` rows share it: each further row costs a third.
constexpr double weight_cost(std::int64_t rows) {
  return kPerWeight * static_cast<double>(2 + rows) / 3;
}

/// The least that is given to a thread. Handing work over costs 2 to 5 microseconds, and far more when the
/// core is busy with something else.
constexpr double kWorthAThread = 6000;

/// Threads among which work of so many nanoseconds is split: each gets what is worth it.
inline std::int64_t threads_for(double nanoseconds, int threads) {
  return static_cast<std::int64_t>(
      std::clamp(nanoseconds / kWorthAThread, 1.0, static_cast<double>(threads)));
}

template <class Fn>
void CpuBackend::split(std::int64_t count, double nanoseconds, const Fn& fn) {
  if (count <= 0) return;
  const std::int64_t parts = threads_for(nanoseconds * static_cast<double>(count), team_.size());
  team_.parallel_for(static_cast<std::size_t>(count), static_cast<std::size_t>((count + parts - 1) / parts),
                     [&fn](int thread, std::size_t begin, std::size_t end) {
                       fn(thread, static_cast<std::int64_t>(begin), static_cast<std::int64_t>(end));
                     });
}

template <class Work, class Fn>
void CpuBackend::deal(const Work& work, double nanoseconds, const Fn& fn) {
  const std::int64_t shares = threads_for(nanoseconds, team_.size());
  team_.parallel_for(
      static_cast<std::size_t>(shares), 1, [&](int thread, std::size_t begin, std::size_t end) {
        for (std::size_t share = begin; share < end; ++share) {
          work.for_part(
              static_cast<std::int64_t>(share), shares,
              [&](std::int64_t piece, std::int64_t from, std::int64_t to) { fn(thread, piece, from, to); });
        }
      });
}

}  // namespace sluice::backend

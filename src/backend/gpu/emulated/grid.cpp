#include "backend/gpu/emulated/grid.h"

#include <atomic>
#include <mutex>
#include <optional>

namespace sluice::emulated {

GridRunner::GridRunner(int threads) : team_(threads) {
  Arena::instance();  // before any kernel looks for it
  for (int i = 0; i < team_.size(); ++i) runners_.push_back(std::make_unique<GroupRunner>());
}

void GridRunner::run(KernelFunction kernel, const void* args, std::uint32_t threads, Grid grid) {
  const std::uint64_t groups = std::uint64_t{grid.x} * grid.y * grid.z;
  std::mutex mutex;
  std::optional<Fault> first;
  std::atomic<bool> failed{false};
  team_.parallel_for(groups, 1, [&](int thread, std::size_t begin, std::size_t end) {
    for (std::size_t group = begin; group < end && !failed; ++group) {
      try {
        runners_[static_cast<std::size_t>(thread)]->run(kernel, args, threads, grid, group);
      } catch (const Fault& fault) {
        const std::lock_guard lock(mutex);
        if (!first) first = fault;
        failed = true;
      }
    }
  });
  if (first) throw Fault(*first);
}

}  // namespace sluice::emulated

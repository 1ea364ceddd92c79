// What became of the commands of a CUDA device; for tests and benchmarks.
#pragma once

#include <cstdint>

namespace sluice::gpu::cuda {

struct Counters {
  std::uint64_t commands = 0;         // recorded
  std::uint64_t lists = 0;            // submitted
  std::uint64_t direct_commands = 0;  // issued one by one
  std::uint64_t graphs_made = 0;
  std::uint64_t graph_launches = 0;
  std::uint64_t patched_nodes = 0;
  std::uint64_t copies_beside = 0;
  std::uint64_t waits = 0;  // for the device
};

}  // namespace sluice::gpu::cuda

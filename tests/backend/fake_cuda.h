// A CUDA driver that is none: functions over host memory that keep the driver's rules.
//
// What is issued to the stream runs only when somebody waits for it, so that memory which is written again
// too early shows. Kernels are not run, but noted; the two that move memory are.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "backend/gpu/cuda/machine.h"

namespace sluice::gpu::cuda {

struct FunctionObject {
  std::string name;
  std::size_t args = 0;
};
struct GraphNodeObject {
  enum class Kind { kKernel, kCopy, kFill } kind = Kind::kKernel;
  FunctionObject* function = nullptr;
  std::vector<std::byte> args;
  std::uint32_t grid_x = 0;
  CopyNode copy{};
  FillNode fill{};
};
struct GraphObject {
  std::vector<std::unique_ptr<GraphNodeObject>> nodes;
  bool loose = false;  // the last node waits for nothing yet
};
struct GraphExecObject {
  std::map<const GraphNodeObject*, std::size_t> places;
  std::vector<GraphNodeObject> nodes;
};
/// What was issued to a stream and has not run.
struct StreamObject {
  std::deque<std::function<void()>> queue;
  std::uint64_t issued = 0, done = 0;
};
/// So much of a stream, when it was recorded.
struct EventObject {
  StreamObject* stream = nullptr;
  std::uint64_t issued = 0;
};

struct FakeCuda {
  FakeCuda() = default;
  ~FakeCuda();  // with the device memory that a test left
  FakeCuda(const FakeCuda&) = delete;
  FakeCuda& operator=(const FakeCuda&) = delete;

  // What it is.
  int devices = 2, major = 9, minor = 0, version = 13000;
  Status init = kSuccess;
  std::size_t memory = std::size_t{1} << 30;
  std::string missing_kernel;
  // How it fails.
  Status launch_status = kSuccess;
  Status lost = kSuccess;  // of every call, once set
  bool lose_at_wait = false;
  // What became of it.
  struct Run {
    std::string name;
    std::vector<std::byte> args;
    std::uint32_t grid_x = 0;
  };
  std::vector<Run> runs;        // kernels, as they ran
  std::size_t early_edges = 0;  // kernels that may start before the one before has ended
  std::size_t used = 0;
  std::map<Address, std::size_t> allocations;
  std::set<void*> hosts, events, execs, graphs;
  std::set<StreamObject*> streams;
  std::vector<std::unique_ptr<FunctionObject>> functions;

  /// Runs what was issued: to all streams, or the first so many of one.
  void drain();
  void drain(StreamObject& stream, std::uint64_t until);
  void run(const GraphNodeObject& node);
  [[nodiscard]] Driver driver();
};

/// The one that `driver()` works on; a test makes a new one.
FakeCuda& fake_cuda();
void reset_fake_cuda();

}  // namespace sluice::gpu::cuda

// Runs kernels over whole grids on threads of the system.
#pragma once

#include <memory>
#include <vector>

#include "backend/gpu/emulated/group.h"
#include "base/threads.h"

namespace sluice::emulated {

/// A kernel as a function of untyped arguments.
template <auto kKernel>
struct Erased;
template <class Args, void (*kKernel)(const Args&, const Thread&)>
struct Erased<kKernel> {
  static void run(const void* args, const Thread& thread) {
    kKernel(*static_cast<const Args*>(args), thread);
  }
  static constexpr std::size_t kArgs = sizeof(Args);
};

class GridRunner {
 public:
  /// `threads` run groups at the same time.
  explicit GridRunner(int threads);

  /// Runs all groups. Throws Fault, of one of the groups that failed, if any did.
  void run(KernelFunction kernel, const void* args, std::uint32_t threads, Grid grid);

 private:
  ThreadTeam team_;
  std::vector<std::unique_ptr<GroupRunner>> runners_;
};

}  // namespace sluice::emulated

// Runs the groups of a kernel, every thread a fiber.
#pragma once

#include <boost/context/fiber.hpp>
#include <memory>
#include <string>
#include <vector>

#include "backend/gpu/emulated/lane.h"

namespace sluice::emulated {

constexpr std::uint32_t kLanes = 32;
/// Memory of a group, as much as CUDA gives without asking; Metal has 32 KiB.
constexpr std::size_t kSharedBytes = 48 * 1024;

using KernelFunction = void (*)(const void* args, const Thread& thread);

struct Grid {
  std::uint32_t x = 1, y = 1, z = 1;
};

/// One at a time, on one thread of the system; fibers are kept from group to group.
class GroupRunner {
 public:
  GroupRunner();
  ~GroupRunner();
  GroupRunner(const GroupRunner&) = delete;
  GroupRunner& operator=(const GroupRunner&) = delete;

  /// Runs group number `group` (x fastest) of the grid. Throws Fault.
  void run(KernelFunction kernel, const void* args, std::uint32_t threads, Grid grid, std::uint64_t group);

 private:
  friend void meet(const Thread& thread, Meeting meeting, const void* in, void* out);
  friend struct Thread;

  enum class State : std::uint8_t { kReady, kWaiting, kDone };
  struct Lane {
    boost::context::fiber fiber;
    Thread thread;
    State state = State::kDone;
    Meeting meeting = Meeting::kBarrier;
    const void* in = nullptr;
    void* out = nullptr;
  };
  struct Simd {
    std::uint32_t arrived = 0;  // at a meeting of the SIMD group
  };

  void grow(std::uint32_t threads);
  void wait(Lane& lane);
  void arrive(Lane& lane, Meeting meeting, const void* in, void* out);
  void finish(std::uint32_t simd, Meeting meeting);
  [[noreturn]] void diverged(std::uint32_t threads);
  void drop_fibers();

  std::vector<std::unique_ptr<Lane>> lanes_;
  std::vector<Simd> simds_;
  boost::context::fiber scheduler_;
  KernelFunction kernel_ = nullptr;
  const void* args_ = nullptr;
  std::uint32_t threads_ = 0;
  std::uint32_t at_barrier_ = 0;
  std::string fault_;
  alignas(16) std::array<std::byte, kSharedBytes> shared_;
};

}  // namespace sluice::emulated

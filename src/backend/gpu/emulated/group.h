// Runs the groups of a kernel, every thread a fiber.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "backend/gpu/emulated/fiber.h"
#include "backend/gpu/emulated/lane.h"

namespace sluice::emulated {

constexpr std::uint32_t kLanes = 32;
/// Memory of a group, as much as CUDA gives without asking; Metal has 32 KiB.
constexpr std::size_t kSharedBytes = 48 * 1024;
/// What a kernel that asks for more may take beside it: Hopper gives 227 KiB in all.
constexpr std::size_t kLargeBytes = 224 * 1024;

using KernelFunction = void (*)(const void* args, const Thread& thread);

struct Grid {
  std::uint32_t x = 1, y = 1, z = 1;
};

/// A SIMD group: what its lanes do (a bit a lane), and what they bring to a meeting.
struct Simd {
  std::uint32_t ready = 0;    // may run, or has not begun
  std::uint32_t arrived = 0;  // waits at `meeting`
  std::uint32_t barrier = 0;  // waits at a barrier of the group
  std::uint32_t done = 0;
  Meeting meeting = Meeting::kBarrier;
  std::array<std::uint32_t, kLanes> value;  // in and out
  std::array<std::uint32_t, kLanes> from;
  std::array<MmaIn, kLanes> mma;
};

/// Computes what the lanes that have met get.
void finish_meeting(Simd& simd);

/// One at a time, on one thread of the system; fibers are kept from group to group.
class GroupRunner {
 public:
  GroupRunner() = default;
  ~GroupRunner();
  GroupRunner(const GroupRunner&) = delete;
  GroupRunner& operator=(const GroupRunner&) = delete;

  /// Runs group number `group` (x fastest) of the grid. Throws Fault.
  void run(KernelFunction kernel, const void* args, std::uint32_t threads, Grid grid, std::uint64_t group);

 private:
  friend void meet(const Thread& thread, Meeting meeting);
  friend std::uint32_t meet(const Thread& thread, Meeting meeting, std::uint32_t value, std::uint32_t from);
  friend void meet(const Thread& thread, Meeting meeting, const MmaIn& in);
  friend struct Thread;

  /// A fiber and the thread of the group that it runs. One that returns leaves its fiber to the next that has
  /// not begun, so that threads which never wait for each other share one.
  struct Worker {
    Worker(std::size_t number, GroupRunner& runner)
        : fiber(number, [this, &runner] { runner.work(*this); }) {}
    Fiber fiber;
    std::uint32_t thread = 0;
  };
  struct Cancelled {};

  void arrive(const Thread& thread, Meeting meeting);
  /// Lets others run until the thread may go on.
  void wait(const Thread& thread);
  void go_on(Fiber& from, std::uint32_t simd, std::uint32_t after);
  void work(Worker& self);
  void run_thread(std::uint32_t index);
  void cancel();
  [[nodiscard]] std::string divergence() const;

  std::vector<Thread> lanes_;     // [threads]
  std::vector<Worker*> workers_;  // [threads] null for one that has not begun or is done
  std::vector<Simd> simds_;
  std::vector<std::unique_ptr<Worker>> all_;
  std::vector<Worker*> free_;
  Fiber own_;
  KernelFunction kernel_ = nullptr;
  const void* args_ = nullptr;
  std::uint32_t at_barrier_ = 0;
  std::uint32_t done_ = 0;
  bool failed_ = false;  // fault_ says how
  bool cancelling_ = false;
  bool stop_ = false;
  std::string fault_;
  std::size_t poisoned_ = 0;  // bytes of shared_ that this group has taken
  std::size_t poisoned_large_ = 0;
  alignas(16) std::array<std::byte, kSharedBytes> shared_;
  std::vector<std::uint32_t> large_;
};

}  // namespace sluice::emulated

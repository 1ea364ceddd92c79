#include "backend/gpu/emulated/group.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "base/numbers.h"

#if defined(__SANITIZE_ADDRESS__)
#define SLUICE_FIBER_STACK (std::size_t{1} << 18)
#else
#define SLUICE_FIBER_STACK (std::size_t{1} << 16)
#endif

namespace sluice::emulated {
namespace {

const char* name_of(Meeting meeting) {
  switch (meeting) {
    case Meeting::kBarrier:
      return "barrier";
    case Meeting::kSimdBarrier:
      return "simd_barrier";
    case Meeting::kShuffle:
      return "simd_shuffle";
    case Meeting::kBallot:
      return "simd_ballot";
    case Meeting::kSum:
      return "simd_sum";
    case Meeting::kMax:
      return "simd_max";
    case Meeting::kMmaF16:
    case Meeting::kMmaBf16:
      return "mma";
  }
  return "";
}

/// Every half and every bfloat16 as a float.
const float* half_table() {
  static const auto table = [] {
    std::vector<float> values(1U << 16);
    for (std::uint32_t i = 0; i < values.size(); ++i)
      values[i] = to_float(Half{static_cast<std::uint16_t>(i)});
    return values;
  }();
  return table.data();
}

float narrow(Meeting meeting, std::uint32_t pair, bool second) {
  const std::uint32_t bits = second ? pair >> 16 : pair & 0xffffU;
  return meeting == Meeting::kMmaF16 ? half_table()[bits] : std::bit_cast<float>(bits << 16);
}

}  // namespace

void fault_shared(std::size_t at, std::size_t count) {
  throw Fault(fmt::format("access to element {} of a shared array of {}, or not aligned",
                          static_cast<std::int64_t>(at), count));
}

std::uint32_t half_of_code(std::uint32_t code) {
  static const auto table = [] {
    std::array<std::uint16_t, 1024> halves;
    for (std::uint32_t i = 0; i < halves.size(); ++i) halves[i] = to_half(static_cast<float>(i)).bits;
    return halves;
  }();
  return table.at(code);
}

void* Thread::take_shared(std::size_t bytes) const {
  const std::size_t at = (shared_used + 15) / 16 * 16;
  if (at + bytes > kSharedBytes) {
    throw Fault(fmt::format("{} bytes of shared memory, a group has {}", at + bytes, kSharedBytes));
  }
  shared_used = at + bytes;
  return runner->shared_.data() + at;
}

GroupRunner::GroupRunner() = default;

GroupRunner::~GroupRunner() {
  drop_fibers();
}

void GroupRunner::drop_fibers() {
  lanes_.clear();  // a fiber in the middle of a kernel is unwound
}

void GroupRunner::grow(std::uint32_t threads) {
  while (lanes_.size() < threads) {
    auto lane = std::make_unique<Lane>();
    Lane* self = lane.get();
    lane->fiber =
        boost::context::fiber(std::allocator_arg, boost::context::fixedsize_stack(SLUICE_FIBER_STACK),
                              [this, self](boost::context::fiber&& scheduler) {
                                scheduler_ = std::move(scheduler);
                                while (true) {
                                  try {
                                    kernel_(args_, self->thread);
                                  } catch (const Fault& fault) {
                                    if (fault_.empty())
                                      fault_ = fmt::format("thread {}: {}", self->thread.index, fault.what());
                                  }
                                  self->state = State::kDone;
                                  scheduler_ = std::move(scheduler_).resume();
                                }
                                return std::move(scheduler_);
                              });
    lanes_.push_back(std::move(lane));
  }
}

void GroupRunner::run(KernelFunction kernel, const void* args, std::uint32_t threads, Grid grid,
                      std::uint64_t group) {
  grow(threads);
  kernel_ = kernel;
  args_ = args;
  threads_ = threads;
  at_barrier_ = 0;
  fault_.clear();
  simds_.assign(threads / kLanes, {});
  std::memset(shared_.data(), 0xff, shared_.size());  // NaN: nobody has written it
  const auto x = static_cast<std::uint32_t>(group % grid.x);
  const auto y = static_cast<std::uint32_t>(group / grid.x % grid.y);
  const auto z = static_cast<std::uint32_t>(group / grid.x / grid.y);
  for (std::uint32_t i = 0; i < threads; ++i) {
    lanes_[i]->thread = {i, i % kLanes, i / kLanes, x, y, z, grid.x, grid.y, this, 0};
    lanes_[i]->state = State::kReady;
  }
  while (true) {
    bool moved = false;
    bool left = false;
    for (std::uint32_t simd = 0; simd < threads / kLanes; ++simd) {
      // The lanes of a SIMD group meet often: they run until they all wait for others, or are done.
      for (bool again = true; again && fault_.empty();) {
        again = false;
        for (std::uint32_t l = 0; l < kLanes; ++l) {
          Lane& lane = *lanes_[simd * kLanes + l];
          if (lane.state != State::kReady) continue;
          lane.fiber = std::move(lane.fiber).resume();
          again = true;
          moved = true;
          if (!fault_.empty()) break;
        }
      }
      for (std::uint32_t l = 0; l < kLanes; ++l)
        left = left || lanes_[simd * kLanes + l]->state != State::kDone;
    }
    if (!fault_.empty()) {
      drop_fibers();
      throw Fault(fmt::format("group ({}, {}, {}), {}", x, y, z, fault_));
    }
    if (!left) return;
    if (!moved) diverged(threads);
  }
}

void GroupRunner::diverged(std::uint32_t threads) {
  std::string where;
  std::string last;
  for (std::uint32_t i = 0; i < threads; ++i) {
    const Lane& lane = *lanes_[i];
    const std::string now =
        lane.state == State::kDone ? "has returned" : fmt::format("waits at {}", name_of(lane.meeting));
    if (now == last) continue;
    where += fmt::format("{}thread {} {}", where.empty() ? "" : ", ", i, now);
    last = now;
  }
  const Thread& first = lanes_[0]->thread;
  const auto message = fmt::format("group ({}, {}, {}): threads have diverged: from {}", first.group_x,
                                   first.group_y, first.group_z, where);
  drop_fibers();
  throw Fault(message);
}

void GroupRunner::wait(Lane& lane) {
  lane.state = State::kWaiting;
  scheduler_ = std::move(scheduler_).resume();
}

void GroupRunner::arrive(Lane& lane, Meeting meeting, const void* in, void* out) {
  lane.meeting = meeting;
  lane.in = in;
  lane.out = out;
  if (meeting == Meeting::kBarrier) {
    if (++at_barrier_ < threads_) return wait(lane);
    at_barrier_ = 0;
    for (std::uint32_t i = 0; i < threads_; ++i) lanes_[i]->state = State::kReady;
    return;
  }
  Simd& simd = simds_[lane.thread.simd];
  const std::uint32_t first = lane.thread.simd * kLanes;
  if (simd.arrived > 0) {
    for (std::uint32_t l = 0; l < kLanes; ++l) {
      const Lane& other = *lanes_[first + l];
      if (other.state == State::kWaiting && other.meeting != meeting) {
        throw Fault(fmt::format("is at {} while thread {} waits at {}", name_of(meeting), first + l,
                                name_of(other.meeting)));
      }
    }
  }
  if (++simd.arrived < kLanes) return wait(lane);
  simd.arrived = 0;
  finish(lane.thread.simd, meeting);
  for (std::uint32_t l = 0; l < kLanes; ++l) lanes_[first + l]->state = State::kReady;
}

void GroupRunner::finish(std::uint32_t simd, Meeting meeting) {
  std::array<Lane*, kLanes> lane;
  for (std::uint32_t l = 0; l < kLanes; ++l) lane[l] = lanes_[simd * kLanes + l].get();
  switch (meeting) {
    case Meeting::kBarrier:
    case Meeting::kSimdBarrier:
      return;
    case Meeting::kShuffle:
      for (Lane* l : lane) {
        const auto from = static_cast<const ShuffleIn*>(l->in)->lane % kLanes;
        *static_cast<std::uint32_t*>(l->out) = static_cast<const ShuffleIn*>(lane[from]->in)->value;
      }
      return;
    case Meeting::kBallot: {
      std::uint32_t bits = 0;
      for (std::uint32_t l = 0; l < kLanes; ++l) {
        bits |= static_cast<std::uint32_t>(*static_cast<const bool*>(lane[l]->in)) << l;
      }
      for (Lane* l : lane) *static_cast<std::uint32_t*>(l->out) = bits;
      return;
    }
    case Meeting::kSum:
    case Meeting::kMax: {
      // The order of a butterfly of exclusive ors.
      std::array<float, kLanes> value;
      for (std::uint32_t l = 0; l < kLanes; ++l) value[l] = *static_cast<const float*>(lane[l]->in);
      for (std::uint32_t mask = kLanes / 2; mask > 0; mask /= 2) {
        const auto before = value;
        for (std::uint32_t l = 0; l < kLanes; ++l) {
          value[l] = meeting == Meeting::kSum ? before[l] + before[l ^ mask]
                                              : std::fmax(before[l], before[l ^ mask]);
        }
      }
      for (std::uint32_t l = 0; l < kLanes; ++l) *static_cast<float*>(lane[l]->out) = value[l];
      return;
    }
    case Meeting::kMmaF16:
    case Meeting::kMmaBf16: {
      std::array<std::array<float, 16>, 16> a;  // [row][input]
      std::array<std::array<float, 8>, 16> b;   // [input][column]
      for (std::uint32_t l = 0; l < kLanes; ++l) {
        const auto& in = *static_cast<const MmaIn*>(lane[l]->in);
        for (std::uint32_t i = 0; i < 8; ++i) {
          const std::uint32_t pair = i / 2;
          const std::uint32_t k = l % 4 * 2 + i % 2 + (pair >= 2 ? 8 : 0);
          a[l / 4 + (pair % 2) * 8][k] = narrow(meeting, in.a[pair], i % 2 != 0);
        }
        for (std::uint32_t i = 0; i < 4; ++i) {
          b[l % 4 * 2 + i % 2 + i / 2 * 8][l / 4] = narrow(meeting, in.b[i / 2], i % 2 != 0);
        }
      }
      std::array<std::array<float, 8>, 16> c{};
      for (std::uint32_t row = 0; row < 16; ++row) {
        for (std::uint32_t k = 0; k < 16; ++k) {
          for (std::uint32_t column = 0; column < 8; ++column) c[row][column] += a[row][k] * b[k][column];
        }
      }
      for (std::uint32_t l = 0; l < kLanes; ++l) {
        auto* out = static_cast<float*>(lane[l]->out);
        for (std::uint32_t i = 0; i < 4; ++i) out[i] += c[l / 4 + i / 2 * 8][l % 4 * 2 + i % 2];
      }
      return;
    }
  }
}

void meet(const Thread& thread, Meeting meeting, const void* in, void* out) {
  GroupRunner& runner = *thread.runner;
  runner.arrive(*runner.lanes_[thread.index], meeting, in, out);
}

}  // namespace sluice::emulated

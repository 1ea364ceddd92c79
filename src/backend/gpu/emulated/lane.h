// One thread of an emulated group, and where it meets the others.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "backend/gpu/emulated/memory.h"

namespace sluice::emulated {

class GroupRunner;

[[noreturn]] void fault_shared(std::size_t at, std::size_t count);

/// Memory of a group: a part of its arena, with bounds.
template <class T>
class SharedArray {
 public:
  SharedArray(T* first, std::size_t count) : first_(first), count_(count) {}
  T& operator[](std::int64_t at) const {
    if (static_cast<std::uint64_t>(at) >= count_) fault_shared(static_cast<std::size_t>(at), count_);
    return first_[at];
  }
  SharedArray operator+(std::int64_t elements) const {
    if (static_cast<std::uint64_t>(elements) > count_)
      fault_shared(static_cast<std::size_t>(elements), count_);
    return {first_ + elements, count_ - static_cast<std::size_t>(elements)};
  }
  template <class Wide>
  [[nodiscard]] Wide wide(std::int64_t at) const {
    Wide value;
    std::memcpy(&value, place<Wide>(at), sizeof value);
    return value;
  }
  template <class Wide>
  void set_wide(std::int64_t at, Wide value) const {
    std::memcpy(place<Wide>(at), &value, sizeof value);
  }

 private:
  template <class Wide>
  T* place(std::int64_t at) const {
    constexpr std::size_t kElements = sizeof(Wide) / sizeof(T);
    if (static_cast<std::uint64_t>(at) + kElements > count_ ||
        reinterpret_cast<std::uintptr_t>(first_ + at) % sizeof(Wide) != 0) {
      fault_shared(static_cast<std::size_t>(at), count_);
    }
    return first_ + at;
  }
  T* first_;
  std::size_t count_;
};

struct Thread {
  std::uint32_t index = 0, lane = 0, simd = 0;
  std::uint32_t group_x = 0, group_y = 0, group_z = 0;
  std::uint32_t groups_x = 0, groups_y = 0;
  GroupRunner* runner = nullptr;
  mutable std::size_t shared_used = 0;  // every thread takes the group's arrays in the same order
  mutable std::size_t large_used = 0;

  template <class T>
  [[nodiscard]] SharedArray<T> shared(std::size_t count) const {
    return {static_cast<T*>(take_shared(count * sizeof(T))), count};
  }
  /// What a kernel takes beyond the memory that every device has.
  [[nodiscard]] SharedArray<std::uint32_t> large(std::size_t words) const {
    return {static_cast<std::uint32_t*>(take_large(words * 4)), words};
  }

 private:
  [[nodiscard]] void* take_shared(std::size_t bytes) const;
  [[nodiscard]] void* take_large(std::size_t bytes) const;
};

/// Where threads wait for each other.
enum class Meeting : std::uint8_t {
  kBarrier,
  kSimdBarrier,
  kShuffle,
  kBallot,
  kSum,
  kMax,
  kMmaF16,
  kMmaBf16
};

struct MmaIn {
  const std::uint32_t* a;  // [4]
  const std::uint32_t* b;  // [2]
  float* c;                // [4]
};

/// Each returns once all lanes of the SIMD group (all threads of the group for kBarrier) are here.
void meet(const Thread& thread, Meeting meeting);
/// Gives what the meeting makes of every lane's `value`; for kShuffle, the value of lane `from`.
std::uint32_t meet(const Thread& thread, Meeting meeting, std::uint32_t value, std::uint32_t from);
void meet(const Thread& thread, Meeting meeting, const MmaIn& in);

}  // namespace sluice::emulated

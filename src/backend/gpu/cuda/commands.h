// Commands that are recorded until something has to be waited for.
//
// Recording costs no allocation once the list has been as long before: arguments lie in one buffer, and what
// is uploaded in another.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "backend/gpu/cuda/machine.h"
#include "backend/gpu/device.h"

namespace sluice::gpu::cuda {

struct Command {
  enum class Kind : std::uint8_t {
    kKernel,
    kUpload,  // the copying kernel; its `from` is an offset into uploads() until it is run
    kCopy,    // by the driver
    kFill,
  };
  Kind kind = Kind::kKernel;
  bool to_host = false, from_host = false;  // of kCopy: pinned memory of the host
  std::uint32_t kernel = 0;                 // into Machine::kernels
  Grid grid;
  std::uint32_t args = 0;                     // offset of the arguments
  std::uint64_t to = 0, from = 0, bytes = 0;  // of kCopy and kFill, whose `from` is the value

  /// What a graph fixes when it is made; all the rest can be patched.
  [[nodiscard]] bool same_node(const Command& other) const {
    return kind == other.kind && kernel == other.kernel && to_host == other.to_host &&
           from_host == other.from_host;
  }
  [[nodiscard]] bool same_values(const Command& other) const {
    return grid.x == other.grid.x && grid.y == other.grid.y && grid.z == other.grid.z && to == other.to &&
           from == other.from && bytes == other.bytes;
  }
  [[nodiscard]] bool computes() const { return kind == Kind::kKernel && kernel < kKernelCount; }
  [[nodiscard]] bool is_kernel() const { return kind == Kind::kKernel || kind == Kind::kUpload; }
};

class CommandList {
 public:
  void kernel(std::uint32_t kernel, Grid grid, std::span<const std::byte> args);
  void upload(std::uint64_t to, std::span<const std::byte> from);
  void copy(std::uint64_t to, bool to_host, std::uint64_t from, bool from_host, std::uint64_t bytes);
  void fill(std::uint64_t to, std::uint8_t value, std::uint64_t bytes);
  void clear();

  [[nodiscard]] std::size_t size() const { return commands_.size(); }
  [[nodiscard]] const std::vector<Command>& commands() const { return commands_; }
  [[nodiscard]] const std::vector<std::byte>& args() const { return args_; }
  [[nodiscard]] std::span<const std::byte> uploads() const { return uploads_; }
  /// A hash of what graphs of this list have in common: kernels, kinds and sizes of uploads, in order.
  [[nodiscard]] std::uint64_t shape() const { return shape_; }

 private:
  void add(const Command& command, std::uint64_t size);
  std::uint32_t keep(std::vector<std::byte>& in, std::span<const std::byte> bytes);

  std::vector<Command> commands_;
  std::vector<std::byte> args_, uploads_;
  std::uint64_t shape_ = 0;
};

/// Groups of the copying and the filling kernel.
inline Grid move_grid(std::uint64_t bytes) {
  constexpr std::uint64_t kEach = 16 * kMoveThreads;
  constexpr std::uint64_t kMost = 1024;
  return {static_cast<std::uint32_t>(std::min((bytes + kEach - 1) / kEach, kMost)), 1, 1};
}

}  // namespace sluice::gpu::cuda

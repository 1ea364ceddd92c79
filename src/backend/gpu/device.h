// A device that runs kernels: the one interface that CUDA, Metal and the emulated device implement.
//
// Commands are issued in order, by one thread, and may run later and asynchronously; each sees the effects of
// those before it. What fails later is kept: status() gives the first failure, and everything after it is
// ignored.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "backend/gpu/kernels.h"
#include "base/result.h"

namespace sluice::gpu {

/// Groups of a launch in each direction; none of them 0.
struct Grid {
  std::uint32_t x = 1, y = 1, z = 1;
};

class Device {
 public:
  virtual ~Device() = default;
  /// What the user knows it by, e.g. "NVIDIA H200".
  [[nodiscard]] virtual std::string_view name() const = 0;
  /// Groups that it can run at once, about: to decide how finely work is split. Never decides an order of
  /// summation.
  [[nodiscard]] virtual std::uint32_t multiprocessors() const = 0;
  [[nodiscard]] virtual std::uint64_t memory_bytes() const = 0;
  /// Of its memory, what nobody has; none where its memory is the host's.
  [[nodiscard]] virtual std::optional<std::uint64_t> free_bytes() const { return std::nullopt; }

  /// Whether the kernels with a wide multiplication (kernels/dialect/wide.h) are for it: they give the bits
  /// of those without.
  [[nodiscard]] virtual bool multiplies_wide() const { return false; }

  // --- memory -----------------------------------------------------------------------------------
  /// Device memory, aligned to 256 bytes at least; its contents are undefined. Fails with kOutOfMemory,
  /// naming the bytes asked for and those free.
  virtual Result<std::uint64_t> allocate(std::size_t bytes) = 0;
  /// Waits for commands that may use it.
  virtual void free(std::uint64_t address) = 0;
  /// Host memory that kernels read and write at the same address (pinned), aligned to 4096 bytes.
  virtual Result<std::byte*> allocate_host(std::size_t bytes) = 0;
  virtual void free_host(std::byte* address) = 0;

  // --- commands ---------------------------------------------------------------------------------
  /// Host to device; `from` may be reused at once.
  virtual void upload(std::uint64_t to, std::span<const std::byte> from) = 0;
  /// Device to host; waits for everything issued before. After a failure `to` is zeros.
  virtual void download(std::span<std::byte> to, std::uint64_t from) = 0;
  virtual void copy(std::uint64_t to, std::uint64_t from, std::size_t bytes) = 0;
  virtual void fill(std::uint64_t to, std::uint8_t value, std::size_t bytes) = 0;
  virtual void launch(Kernel kernel, Grid grid, std::span<const std::byte> args) = 0;
  /// Waits for everything issued before, copies beside among it.
  virtual void synchronise() = 0;

  // --- copies beside the commands ---------------------------------------------------------------
  /// A copy on a queue of its own, in the order of its like. It sees the effects of the commands before it
  /// and does not disturb what they read; commands after it do not wait for it, nor does download().
  virtual void copy_beside(std::uint64_t to, std::uint64_t from, std::size_t bytes) { copy(to, from, bytes); }
  /// Commands issued from now on see the effects of every copy beside before.
  virtual void join_copies() {}

  /// The first failure since the device was opened.
  [[nodiscard]] virtual Result<void> status() const = 0;

  template <class Args>
  void launch(Kernel kernel, Grid grid, const Args& args) {
    static_assert(std::is_trivially_copyable_v<Args>);
    launch(kernel, grid, std::as_bytes(std::span(&args, 1)));
  }
};

}  // namespace sluice::gpu

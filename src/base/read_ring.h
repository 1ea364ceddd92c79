// A queue of reads that the kernel works on while the program goes on: io_uring where there is one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"

namespace sluice {

/// Belongs to one thread, except wake().
class ReadRing {
 public:
  struct Ended {
    std::uint64_t tag = 0;
    std::int64_t result = 0;  // bytes read, or -errno
  };

  virtual ~ReadRing() = default;

  /// Reads to[..] from a descriptor at `offset`, once submit() or wait() is called. `tag` comes back with the
  /// result; the largest number is not free. At most depth() may be under way.
  virtual void read(int fd, std::uint64_t offset, std::span<std::byte> to, std::uint64_t tag) = 0;
  /// Gives the kernel what was queued and does not wait; what goes wrong shows in wait().
  virtual void submit() = 0;
  /// Gives the kernel what was queued, blocks until a read ends or wake() was called, and adds what ended.
  /// Fails only where the ring itself does.
  virtual Result<void> wait(std::vector<Ended>& ended) = 0;
  /// Ends a wait(), this one or the next; from any thread.
  virtual void wake() = 0;
  [[nodiscard]] virtual std::size_t depth() const = 0;

  /// Keeps `memory` in place and known to the kernel, so that reads into it cost less; it consists of
  /// parts of `unit` bytes, and no read crosses from one to the next. False where the system does not allow
  /// it (an unprivileged process may hold only little in place): reads work all the same. No read may be
  /// under way, here and in release_memory().
  virtual bool register_memory(std::span<std::byte> memory, std::size_t unit) = 0;
  virtual void release_memory() = 0;
};

/// Fails with kUnsupported, and why, where the system has none or forbids it.
Result<std::unique_ptr<ReadRing>> open_read_ring(std::size_t depth);

}  // namespace sluice

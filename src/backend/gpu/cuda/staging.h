// Pinned memory that uploads pass through on their way to the device.
#pragma once

#include <array>

#include "backend/gpu/cuda/machine.h"

namespace sluice::gpu::cuda {

/// Pinned memory of the host; empty until it is first needed.
class HostBlock {
 public:
  explicit HostBlock(Machine& machine) : machine_(machine) {}
  ~HostBlock();
  HostBlock(const HostBlock&) = delete;
  HostBlock& operator=(const HostBlock&) = delete;

  /// False where the system refuses so much; then nothing has changed.
  bool allocate(std::size_t bytes);
  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  Machine& machine_;
  std::byte* data_ = nullptr;
};

/// Pieces in turn: one is used again when the device has read what was in it.
class StagingRing {
 public:
  static constexpr std::size_t kPieceBytes = std::size_t{4} << 20;

  explicit StagingRing(Machine& machine) : machine_(machine), block_(machine) {}
  ~StagingRing();
  StagingRing(const StagingRing&) = delete;
  StagingRing& operator=(const StagingRing&) = delete;

  /// Memory for `bytes` (at most a piece), aligned to 16; null after a failure. What reads it must be issued
  /// before the next call.
  std::byte* take(std::size_t bytes);

 private:
  struct Piece {
    Event read = nullptr;
    bool waiting = false;  // `read` was issued behind the last use
  };
  bool open();

  Machine& machine_;
  HostBlock block_;
  std::array<Piece, 4> pieces_;
  std::size_t piece_ = 0;
  std::size_t used_ = 0;
};

}  // namespace sluice::gpu::cuda

#include "backend/gpu/cuda/staging.h"

namespace sluice::gpu::cuda {

HostBlock::~HostBlock() {
  if (data_ != nullptr) machine_.driver->free_host(data_);
}

bool HostBlock::allocate(std::size_t bytes) {
  void* memory = nullptr;
  if (machine_.driver->allocate_host(&memory, bytes, kHostPortable | kHostDeviceMap) != kSuccess)
    return false;
  data_ = static_cast<std::byte*>(memory);
  return true;
}

StagingRing::~StagingRing() {
  for (const Piece& piece : pieces_) {
    if (piece.read != nullptr) machine_.driver->event_destroy(piece.read);
  }
}

bool StagingRing::open() {
  if (block_.data() != nullptr) return true;
  for (Piece& piece : pieces_) {
    if (!machine_.check(machine_.driver->event_create(&piece.read, kEventDisableTiming), "cuEventCreate",
                        [] { return "for uploads"; })) {
      return false;
    }
  }
  if (block_.allocate(pieces_.size() * kPieceBytes)) return true;
  machine_.fail("cuMemHostAlloc", kOutOfMemory,
                fmt::format("{} bytes of pinned memory for uploads", pieces_.size() * kPieceBytes));
  return false;
}

std::byte* StagingRing::take(std::size_t bytes) {
  if (machine_.failed() || !open()) return nullptr;
  bytes = (bytes + 15) / 16 * 16;
  if (used_ + bytes > kPieceBytes) {
    const auto about = [] { return "for a piece of uploads"; };
    Piece& full = pieces_[piece_];
    if (!machine_.check(machine_.driver->event_record(full.read, machine_.stream), "cuEventRecord", about))
      return nullptr;
    full.waiting = true;
    piece_ = (piece_ + 1) % pieces_.size();
    used_ = 0;
    Piece& next = pieces_[piece_];
    if (next.waiting &&
        !machine_.check(machine_.driver->event_wait(next.read), "cuEventSynchronize", about)) {
      return nullptr;
    }
    next.waiting = false;
  }
  std::byte* at = block_.data() + piece_ * kPieceBytes + used_;
  used_ += bytes;
  return at;
}

}  // namespace sluice::gpu::cuda

// What this machine's memory and arithmetic give to a team of threads: the limits that a step is held
// against.
#pragma once

#include <cstdint>
#include <memory>

#include "base/buffer.h"
#include "base/result.h"
#include "base/threads.h"

namespace sluice::backend::cpu {

class MachineMeter {
 public:
  /// `threads` of 0: one for each physical core. Takes half a GiB, which no cache holds. Fails with
  /// kOutOfMemory.
  static Result<MachineMeter> create(int threads);

  [[nodiscard]] int threads() const { return team_->size(); }
  /// Bytes a second of reading memory once, straight on, each thread its part. Takes some hundredths of a
  /// second: what other users of the machine leave changes from one second to the next.
  double read_rate();
  /// float32 multiply-adds a second from registers: each thread as many independent ones as hide their
  /// latency.
  double multiply_rate();

 private:
  MachineMeter(AlignedBuffer memory, int threads);

  AlignedBuffer memory_;
  std::unique_ptr<ThreadTeam> team_;
};

}  // namespace sluice::backend::cpu

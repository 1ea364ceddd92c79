// Copies that run beside the commands, on a stream of their own.
#pragma once

#include "backend/gpu/cuda/machine.h"

namespace sluice::gpu::cuda {

/// Events order the two streams where they must be, so that the host waits for neither.
class CopyQueue {
 public:
  explicit CopyQueue(Machine& machine) : machine_(machine) {}
  /// What is on its way is waited for.
  ~CopyQueue();
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;

  /// Something was submitted to the commands' stream: the next copy waits for it.
  void submitted() { behind_ = true; }
  /// The host has waited for the commands' stream: what was joined has ended too.
  void waited() {
    behind_ = false;
    if (!unjoined_) running_ = false;
  }
  void copy(std::uint64_t to, std::uint64_t from, std::uint64_t bytes);
  /// What is submitted to the commands' stream from now on waits for every copy before. Whether there is one.
  bool join();
  /// The host waits for every copy.
  void wait();

 private:
  bool open();

  Machine& machine_;
  Stream stream_ = nullptr;
  Event fence_ = nullptr, joined_ = nullptr;
  bool behind_ = true;     // a copy must wait for the commands before it
  bool unjoined_ = false;  // copies since the last join()
  bool running_ = false;   // copies that the host has not waited for
};

}  // namespace sluice::gpu::cuda

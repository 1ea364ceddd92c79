// Backends by name.
#pragma once

#include <memory>
#include <string_view>

#include "backend/backend.h"

namespace sluice::backend {

struct BackendOptions {
  int threads = 0;  // 0: one for each physical core
  int device = 0;   // which GPU
  /// "cpu": inputs of quantised matrices stay float32. Otherwise they are rounded to 16-bit integers, which
  /// is about twice as fast and changes an output by 1e-5 of it (cpu/integer_kernels.h).
  bool exact = false;
};

/// "cpu" (SIMD, threads), "scalar" (the reference: plain loops, wide accumulation, one thread), "cuda" (an
/// NVIDIA GPU), "emulated" (the GPU's kernels run and checked on the CPU, slowly), or "auto": "cuda" where
/// there is a GPU that this build has kernels for, else "cpu".
Result<std::unique_ptr<Backend>> create_backend(std::string_view name, const BackendOptions& options);

}  // namespace sluice::backend

// Backends by name.
#pragma once

#include <memory>
#include <string_view>

#include "backend/backend.h"

namespace sluice::backend {

struct BackendOptions {
  int threads = 0;  // 0: one for each physical core
};

/// "cpu" (SIMD, threads) or "scalar" (the reference: plain loops, wide accumulation, one thread).
Result<std::unique_ptr<Backend>> create_backend(std::string_view name, const BackendOptions& options);

}  // namespace sluice::backend

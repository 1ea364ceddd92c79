// The device that every machine has: kernels run on the CPU, fiber by fiber, and are checked while they run.
// It is there to test kernels, not to be fast.
#pragma once

#include <memory>

#include "backend/gpu/device.h"

namespace sluice::gpu {

/// `threads` run groups at the same time; nothing depends on how many.
Result<std::unique_ptr<Device>> open_emulated_device(int threads, bool multiplies_wide = true);

}  // namespace sluice::gpu

// Apple's GPUs. None of it has ever run: nobody who works on this has had such a machine (docs/gpu.md).
#pragma once

#include <memory>

#include "backend/gpu/device.h"

namespace sluice::gpu {

/// The system's default device, its kernels compiled: seconds. Fails with kUnsupported where there is none
/// that will do, and in builds that are not for macOS.
Result<std::unique_ptr<Device>> open_metal_device();

}  // namespace sluice::gpu

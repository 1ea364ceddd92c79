// The compiled kernels that this library carries.
#pragma once

#include <cstddef>
#include <span>

namespace sluice::gpu::cuda {

/// Code for several architectures (a "fatbin"), as the driver loads it; empty in a build without nvcc.
std::span<const std::byte> kernel_image();

/// The CUDA version that made it, 1000 major + 10 minor as the driver counts; 0 in a build without.
int kernel_image_version();

}  // namespace sluice::gpu::cuda

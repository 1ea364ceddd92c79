#include "backend/gpu/cuda/image.h"

#ifdef SLUICE_CUDA_IMAGE

__asm__(
    ".section .rodata\n"
    ".balign 64\n"
    ".global sluice_cuda_image\n"
    ".global sluice_cuda_image_end\n"
    "sluice_cuda_image:\n"
    ".incbin \"" SLUICE_CUDA_IMAGE
    "\"\n"
    "sluice_cuda_image_end:\n"
    ".balign 64\n"
    ".previous\n");
extern "C" {
extern const std::byte sluice_cuda_image[];
extern const std::byte sluice_cuda_image_end[];
}

namespace sluice::gpu::cuda {
std::span<const std::byte> kernel_image() {
  return {&sluice_cuda_image[0], &sluice_cuda_image_end[0]};
}
int kernel_image_version() {
  return SLUICE_CUDA_IMAGE_VERSION;
}
}  // namespace sluice::gpu::cuda

#else

namespace sluice::gpu::cuda {
std::span<const std::byte> kernel_image() {
  return {};
}
int kernel_image_version() {
  return 0;
}
}  // namespace sluice::gpu::cuda

#endif

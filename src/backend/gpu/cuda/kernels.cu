// Every kernel for CUDA; nvcc makes one image of it that the library carries (image.h).
#include "kernels/kernels.h"

#include "backend/gpu/cuda/move_args.h"

namespace sluice::kernels {

// Small copies and fills, those between host and device too, are kernels: in a graph of kernels they follow
// each other without the detour over a copy engine.

/// 16 bytes a thread where both addresses allow it, else bytes; the grid strides over the rest.
extern "C" __global__ void __launch_bounds__(gpu::kMoveThreads)
    sluice_copy(const __grid_constant__ gpu::CopyArgs args) {
  wait_for_kernel_before();
  const u64 first = u64{blockIdx.x} * gpu::kMoveThreads + threadIdx.x;
  const u64 stride = u64{gridDim.x} * gpu::kMoveThreads;
  const u64 wide = (args.to | args.from) % 16 == 0 ? args.bytes / 16 : 0;
  auto* to = reinterpret_cast<uint4*>(args.to);
  const auto* from = reinterpret_cast<const uint4*>(args.from);
  for (u64 i = first; i < wide; i += stride) to[i] = from[i];
  auto* byte_to = reinterpret_cast<u8*>(args.to);
  const auto* byte_from = reinterpret_cast<const u8*>(args.from);
  for (u64 i = wide * 16 + first; i < args.bytes; i += stride) byte_to[i] = byte_from[i];
}

extern "C" __global__ void __launch_bounds__(gpu::kMoveThreads)
    sluice_fill(const __grid_constant__ gpu::FillArgs args) {
  wait_for_kernel_before();
  const u64 first = u64{blockIdx.x} * gpu::kMoveThreads + threadIdx.x;
  const u64 stride = u64{gridDim.x} * gpu::kMoveThreads;
  const u32 word = static_cast<u32>(args.value) * 0x01010101U;
  const u64 wide = args.to % 16 == 0 ? args.bytes / 16 : 0;
  auto* to = reinterpret_cast<uint4*>(args.to);
  for (u64 i = first; i < wide; i += stride) to[i] = make_uint4(word, word, word, word);
  auto* byte_to = reinterpret_cast<u8*>(args.to);
  for (u64 i = wide * 16 + first; i < args.bytes; i += stride) byte_to[i] = static_cast<u8>(args.value);
}

}  // namespace sluice::kernels

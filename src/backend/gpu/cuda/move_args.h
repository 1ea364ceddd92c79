// Arguments of the two kernels that are CUDA's alone; the host and nvcc read the same text.
#pragma once

namespace sluice::gpu {

constexpr unsigned kMoveThreads = 256;

struct CopyArgs {
  unsigned long long to, from, bytes;
};
struct FillArgs {
  unsigned long long to, bytes, value;
};

}  // namespace sluice::gpu

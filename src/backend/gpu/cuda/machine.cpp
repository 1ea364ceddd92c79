#include "backend/gpu/cuda/machine.h"

namespace sluice::gpu::cuda {
namespace {

template <class Args>
constexpr std::size_t args_of(void (*)(const Args&, const emulated::Thread&)) {
  return sizeof(Args);
}

}  // namespace

void Machine::fail(const char* call, Status status, const std::string& about) {
  if (failure) return;
  const auto code = status == kOutOfMemory ? ErrorCode::kOutOfMemory : ErrorCode::kDevice;
  failure = make_error(code, "cuda: {}: {}: {}", call, driver->describe(status), about);
}

std::vector<KernelFunction> kernel_functions() {
  return {
#define SLUICE_KERNEL_FUNCTION(name) \
  {#name, kernels::name##_threads, kernels::name##_large, args_of(&kernels::name), nullptr},
      SLUICE_KERNELS(SLUICE_KERNEL_FUNCTION)
#undef SLUICE_KERNEL_FUNCTION
          {"sluice_copy", kMoveThreads, 0, sizeof(CopyArgs), nullptr},
      {"sluice_fill", kMoveThreads, 0, sizeof(FillArgs), nullptr},
  };
}

}  // namespace sluice::gpu::cuda

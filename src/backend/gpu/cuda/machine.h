// What the parts of a CUDA device share: the driver, where commands go, the functions, the first failure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/gpu/cuda/driver.h"
#include "backend/gpu/cuda/move_args.h"
#include "backend/gpu/kernels.h"

namespace sluice::gpu::cuda {

/// The kernels of kernels/list.h, then those that are CUDA's alone.
constexpr std::uint32_t kCopyKernel = kKernelCount;
constexpr std::uint32_t kFillKernel = kKernelCount + 1;
constexpr std::uint32_t kFunctionCount = kKernelCount + 2;

struct KernelFunction {
  const char* name = "";
  std::uint32_t threads = 0;
  std::uint32_t large = 0;  // bytes of a group's memory to ask for at the launch
  std::size_t args = 0;     // bytes
  Function function = nullptr;
};

struct Machine {
  const Driver* driver = nullptr;
  Context context = nullptr;
  Stream stream = nullptr;
  std::vector<KernelFunction> kernels;  // [kFunctionCount]
  std::optional<Error> failure;

  [[nodiscard]] bool failed() const { return failure.has_value(); }

  /// Whether `status` is success; the first that is not becomes the device's failure. `about()` says what
  /// was asked for, and is called only then.
  template <class About>
  bool check(Status status, const char* call, const About& about) {
    if (status == kSuccess) return true;
    fail(call, status, about());
    return false;
  }
  void fail(const char* call, Status status, const std::string& about);
};

/// Every kernel's name, threads and size of arguments; functions still null.
std::vector<KernelFunction> kernel_functions();

}  // namespace sluice::gpu::cuda

// The kernels by name, and their arguments.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "kernels/kernels.h"
#include "kernels/list.h"

namespace sluice::gpu {

/// kernels/list.h gives their names.
enum class Kernel : std::uint16_t {
#define SLUICE_KERNEL_ENUM(name) name,
  SLUICE_KERNELS(SLUICE_KERNEL_ENUM)
#undef SLUICE_KERNEL_ENUM
      kCount
};

constexpr std::size_t kKernelCount = static_cast<std::size_t>(Kernel::kCount);

struct KernelInfo {
  const char* name = "";
  std::uint32_t threads = 0;  // of a group
  std::uint32_t large = 0;    // bytes of a group's memory beside SHARED: for devices that multiply wide
};

inline constexpr std::array<KernelInfo, kKernelCount> kKernels = {{
#define SLUICE_KERNEL_INFO(name) {#name, kernels::name##_threads, kernels::name##_large},
    SLUICE_KERNELS(SLUICE_KERNEL_INFO)
#undef SLUICE_KERNEL_INFO
}};

}  // namespace sluice::gpu

#include "backend/gpu/cuda/driver.h"

#include <dlfcn.h>

#include <array>

namespace sluice::gpu::cuda {
namespace {

// Beside the names that the loader resolves by itself: a program started through a loader that it brought
// along does not search the system's folders.
constexpr std::array<const char*, 6> kLibraries = {
    "libcuda.so.1",
    "/usr/local/nvidia/lib64/libcuda.so.1",
    "/usr/lib/x86_64-linux-gnu/libcuda.so.1",
    "/usr/lib/aarch64-linux-gnu/libcuda.so.1",
    "/usr/lib64/libcuda.so.1",
    "/usr/lib/wsl/lib/libcuda.so.1",
};

std::string last_error() {
  const char* why = dlerror();
  return why == nullptr ? "not found" : why;
}

Result<Driver> resolve(void* library) {
  Driver driver;
#define SLUICE_CUDA_RESOLVE(member, name, parameters)                                      \
  driver.member = reinterpret_cast<Status(*) parameters>(dlsym(library, #name));           \
  if (driver.member == nullptr) {                                                          \
    return make_error(ErrorCode::kUnsupported,                                             \
                      "cuda: the NVIDIA driver here has no " #name                         \
                      ": one for CUDA 12 or newer is needed; --backend cpu runs without"); \
  }
  SLUICE_CUDA_DRIVER(SLUICE_CUDA_RESOLVE)
#undef SLUICE_CUDA_RESOLVE
  driver.param_info = reinterpret_cast<decltype(driver.param_info)>(dlsym(library, "cuFuncGetParamInfo"));
  driver.graph_add_edges =
      reinterpret_cast<decltype(driver.graph_add_edges)>(dlsym(library, "cuGraphAddDependencies_v2"));
  return driver;
}

Error no_driver(const std::string& why) {
  return make_error(ErrorCode::kUnsupported,
                    "cuda: no NVIDIA driver here ({}); --backend cpu runs without one", why);
}

}  // namespace

std::string Driver::describe(Status status) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (error_name(status, &name) != kSuccess || name == nullptr) return fmt::format("error {}", status);
  if (error_string(status, &text) != kSuccess || text == nullptr) return name;
  return fmt::format("{}: {}", name, text);
}

Result<Driver> load_driver_from(const char* library) {
  // Never closed: the driver's threads do not end with us.
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return no_driver(last_error());
  return resolve(handle);
}

Result<const Driver*> load_driver() {
  static const Result<Driver> driver = []() -> Result<Driver> {
    std::string why;
    for (const char* library : kLibraries) {
      void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
      if (handle != nullptr) return resolve(handle);
      const std::string now = last_error();
      if (why.empty()) why = now;
    }
    return no_driver(why);
  }();
  if (!driver.ok()) return driver.error();
  return &driver.value();
}

}  // namespace sluice::gpu::cuda

#include "backend/create.h"

#include <system_error>

#include "backend/cpu/cpu_backend.h"
#include "backend/gpu/cuda/cuda_device.h"
#include "backend/gpu/emulated/emulated_device.h"
#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/metal/metal_device.h"
#include "backend/scalar/scalar_backend.h"
#include "base/threads.h"

namespace sluice::backend {

constexpr int kMostThreads = 1024;

Result<std::unique_ptr<Backend>> create_backend(std::string_view name, const BackendOptions& options) {
  if (options.threads < 0 || options.threads > kMostThreads) {
    return make_error(ErrorCode::kInvalidArgument, "{} threads: needed 1 to {}, or 0 for one a core",
                      options.threads, kMostThreads);
  }
  if (name == "cuda" || name == "auto") {
    auto device = gpu::open_cuda_device(options.device);
    if (device.ok()) {
      return std::unique_ptr<Backend>(std::make_unique<GpuBackend>("cuda", std::move(device).value()));
    }
    // A GPU that is there and fails, or another number than those there, is not passed over in silence.
    if (name == "cuda" || device.error().code != ErrorCode::kUnsupported) return device.error();
    name = "cpu";
  }
  if (name == "cpu") {
    try {
      return std::unique_ptr<Backend>(std::make_unique<CpuBackend>(options.threads, options.exact));
    } catch (const std::system_error& e) {
      return make_error(ErrorCode::kOutOfMemory, "{} threads: the system refuses to start them: {}",
                        options.threads, e.what());
    }
  }
  if (name == "scalar") return std::unique_ptr<Backend>(std::make_unique<ScalarBackend>());
  if (name == "emulated") {
    const int threads = options.threads == 0 ? ThreadTeam::default_size() : options.threads;
    SLUICE_ASSIGN(auto device, gpu::open_emulated_device(threads));
    return std::unique_ptr<Backend>(std::make_unique<GpuBackend>("emulated", std::move(device)));
  }
  if (name == "metal") {
    SLUICE_ASSIGN(auto device, gpu::open_metal_device());
    return std::unique_ptr<Backend>(std::make_unique<GpuBackend>("metal", std::move(device)));
  }
  return make_error(
      ErrorCode::kUnsupported,
      "unknown backend \"{}\": there are \"cpu\", \"scalar\", \"cuda\", \"metal\", \"emulated\" and \"auto\"",
      name);
}

}  // namespace sluice::backend

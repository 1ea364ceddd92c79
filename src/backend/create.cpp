#include "backend/create.h"

#include <system_error>

#include "backend/cpu/cpu_backend.h"
#include "backend/scalar/scalar_backend.h"

namespace sluice::backend {

constexpr int kMostThreads = 1024;

Result<std::unique_ptr<Backend>> create_backend(std::string_view name, const BackendOptions& options) {
  if (options.threads < 0 || options.threads > kMostThreads) {
    return make_error(ErrorCode::kInvalidArgument, "{} threads: needed 1 to {}, or 0 for one a core",
                      options.threads, kMostThreads);
  }
  if (name == "cpu") {
    try {
      return std::unique_ptr<Backend>(std::make_unique<CpuBackend>(options.threads));
    } catch (const std::system_error& e) {
      return make_error(ErrorCode::kOutOfMemory, "{} threads: the system refuses to start them: {}",
                        options.threads, e.what());
    }
  }
  if (name == "scalar") return std::unique_ptr<Backend>(std::make_unique<ScalarBackend>());
  return make_error(ErrorCode::kUnsupported, "unknown backend \"{}\": this build has \"cpu\" and \"scalar\"",
                    name);
}

}  // namespace sluice::backend

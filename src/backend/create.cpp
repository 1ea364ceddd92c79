#include "backend/create.h"

#include "backend/cpu/cpu_backend.h"
#include "backend/scalar/scalar_backend.h"

namespace sluice::backend {

Result<std::unique_ptr<Backend>> create_backend(std::string_view name, const BackendOptions& options) {
  if (name == "cpu") return std::unique_ptr<Backend>(std::make_unique<CpuBackend>(options.threads));
  if (name == "scalar") return std::unique_ptr<Backend>(std::make_unique<ScalarBackend>());
  return make_error(ErrorCode::kUnsupported, "unknown backend \"{}\": this build has \"cpu\" and \"scalar\"",
                    name);
}

}  // namespace sluice::backend

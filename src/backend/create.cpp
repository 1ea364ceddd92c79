#include "backend/create.h"

#include "backend/scalar/scalar_backend.h"

namespace sluice::backend {

Result<std::unique_ptr<Backend>> create_backend(std::string_view name,
                                                [[maybe_unused]] const BackendOptions& options) {
  if (name == "scalar") return std::unique_ptr<Backend>(std::make_unique<ScalarBackend>());
  return make_error(ErrorCode::kUnsupported, "unknown backend \"{}\": this build has \"scalar\"", name);
}

}  // namespace sluice::backend

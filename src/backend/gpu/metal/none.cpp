// The Metal device of builds for other systems.
#include "backend/gpu/metal/metal_device.h"

namespace sluice::gpu {

Result<std::unique_ptr<Device>> open_metal_device() {
  return make_error(ErrorCode::kUnsupported,
                    "backend \"metal\": this build has none: only builds on macOS do");
}

}  // namespace sluice::gpu

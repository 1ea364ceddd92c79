#include "backend/gpu/gpu_backend.h"

namespace sluice::backend {

void GpuBackend::experts(const ExpertBatch& /*batch*/, std::int64_t /*first*/, std::int64_t /*last*/,
                         std::int64_t /*pairs*/, Dev<const float> /*x*/, Dev<float> /*y*/) {
  refuse("experts");
}

}  // namespace sluice::backend

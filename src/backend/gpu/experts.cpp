#include "backend/gpu/gpu_backend.h"

namespace sluice::backend {

void GpuBackend::router_topk(Dev<const float> /*logits*/, std::int64_t /*rows*/, std::int64_t /*n*/,
                             std::int64_t /*k*/, bool /*renormalise*/, Dev<std::uint32_t> /*index*/,
                             Dev<float> /*weight*/) {
  refuse("router_topk");
}

void GpuBackend::experts(const ExpertBatch& /*batch*/, std::int64_t /*first*/, std::int64_t /*last*/,
                         std::int64_t /*pairs*/, Dev<const float> /*x*/, Dev<float> /*y*/) {
  refuse("experts");
}

void GpuBackend::combine_experts(Dev<const float> /*y*/, Dev<const float> /*weight*/, std::int64_t /*rows*/,
                                 std::int64_t /*slots*/, std::int64_t /*width*/, Dev<float> /*out*/) {
  refuse("combine_experts");
}

}  // namespace sluice::backend

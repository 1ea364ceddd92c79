#include "backend/gpu/gpu_backend.h"

namespace sluice::backend {

void GpuBackend::embed_rows(const Matrix& /*table*/, Dev<const std::int32_t> /*ids*/, std::int64_t /*rows*/,
                            Dev<float> /*out*/) {
  refuse("embed_rows");
}

void GpuBackend::linear(const Matrix& /*w*/, Dev<const float> /*x*/, std::int64_t /*rows*/,
                        Dev<float> /*y*/) {
  refuse("linear");
}

void GpuBackend::linear_silu(const Matrix& /*w*/, Dev<const float> /*x*/, std::int64_t /*rows*/,
                             float /*div*/, Dev<float> /*y*/) {
  refuse("linear_silu");
}

}  // namespace sluice::backend

#include "backend/gpu/gpu_backend.h"

namespace sluice::backend {

void GpuBackend::causal_conv(ConvShape /*shape*/, Dev<const float> /*in*/, Dev<const float> /*w*/,
                             Ring /*ring*/, std::int64_t /*base*/, std::int64_t /*rows*/,
                             Dev<const float> /*add*/, Dev<float> /*out*/) {
  refuse("causal_conv");
}

void GpuBackend::delta_gates(Dev<const float> /*a*/, Dev<const float> /*b*/, Dev<const float> /*a_log*/,
                             Dev<const float> /*dt_bias*/, std::int64_t /*rows*/,
                             std::int64_t /*value_heads*/, Dev<float> /*decay*/, Dev<float> /*beta*/) {
  refuse("delta_gates");
}

void GpuBackend::delta_scan(DeltaShape /*shape*/, Dev<const float> /*qkv*/, Dev<const float> /*decay*/,
                            Dev<const float> /*beta*/, std::int64_t /*rows*/, Dev<const float> /*state_in*/,
                            Dev<float> /*state_out*/, Dev<float> /*y*/) {
  refuse("delta_scan");
}

void GpuBackend::delta_gate_norm(Dev<const float> /*y*/, Dev<const float> /*z*/, Dev<const float> /*w*/,
                                 float /*eps*/, GateKind /*gate*/, std::int64_t /*rows*/,
                                 std::int64_t /*heads*/, std::int64_t /*dim*/, Dev<float> /*out*/) {
  refuse("delta_gate_norm");
}

}  // namespace sluice::backend

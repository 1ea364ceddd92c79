#include "backend/gpu/gpu_backend.h"

namespace sluice::backend {

void GpuBackend::attention(AttentionShape /*shape*/, Dev<const float> /*q*/, Dev<const float> /*keys*/,
                           Dev<const float> /*values*/, const TokenSelection& /*selection*/,
                           std::int64_t /*rows*/, Dev<float> /*out*/) {
  refuse("attention");
}

void GpuBackend::attention_q8(AttentionShape /*shape*/, Dev<const float> /*q*/,
                              Dev<const std::int8_t> /*keys*/, Dev<const std::uint16_t> /*key_scales*/,
                              Dev<const std::int8_t> /*values*/, Dev<const std::uint16_t> /*value_scales*/,
                              Dev<const std::uint32_t> /*tokens*/, std::int64_t /*count*/,
                              Dev<float> /*out*/) {
  refuse("attention_q8");
}

void GpuBackend::softmax_selected(Dev<const float> /*scores*/, Dev<const std::uint32_t> /*block_mask*/,
                                  std::int64_t /*rows*/, std::int64_t /*stride*/, std::int64_t /*queries*/,
                                  std::int64_t /*base*/, std::int64_t /*ratio*/, std::int64_t /*mask_words*/,
                                  Dev<std::uint16_t> /*out*/) {
  refuse("softmax_selected");
}

}  // namespace sluice::backend

#include "backend/gpu/gpu_backend.h"

namespace sluice::backend {

void GpuBackend::index_block_keys(IndexShape /*shape*/, Dev<const float> /*raw_keys*/, std::int64_t /*first*/,
                                  std::int64_t /*last*/, Dev<const float> /*w*/, float /*eps*/,
                                  const Rope& /*rope*/, Dev<float> /*block_keys*/) {
  refuse("index_block_keys");
}

void GpuBackend::index_scores(IndexShape /*shape*/, Dev<const float> /*q*/, Dev<const float> /*block_keys*/,
                              Dev<const std::uint32_t> /*blocks*/, std::int64_t /*rows*/,
                              std::int64_t /*stride*/, Dev<float> /*scores*/) {
  refuse("index_scores");
}

void GpuBackend::index_select(IndexShape /*shape*/, Dev<const float> /*scores*/,
                              std::int64_t /*score_stride*/, Dev<const std::uint32_t> /*visible*/,
                              std::int64_t /*rows*/, Dev<std::uint32_t> /*tokens*/,
                              std::int64_t /*token_stride*/, Dev<std::uint32_t> /*count*/,
                              Dev<std::uint8_t> /*dense*/, Dev<std::uint32_t> /*mask*/,
                              std::int64_t /*mask_words*/) {
  refuse("index_select");
}

}  // namespace sluice::backend

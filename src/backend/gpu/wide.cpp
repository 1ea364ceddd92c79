#include "backend/gpu/gpu_backend.h"

namespace sluice::backend {

void GpuBackend::replicate(WideShape /*shape*/, Dev<const float> /*e*/, Dev<float> /*wide*/) {
  refuse("replicate");
}

void GpuBackend::group_norm(WideShape /*shape*/, Dev<const float> /*x*/, Dev<const float> /*w*/,
                            float /*shift*/, float /*eps*/, Dev<float> /*y*/) {
  refuse("group_norm");
}

void GpuBackend::inject(WideShape /*shape*/, Dev<const float> /*out*/, Dev<const float> /*gate*/,
                        Dev<float> /*wide*/) {
  refuse("inject");
}

void GpuBackend::norm_prepare(WideShape /*shape*/, Dev<const float> /*out*/, Dev<const float> /*gate*/,
                              Dev<float> /*wide*/, Dev<const float> /*w*/, float /*eps*/, Dev<float> /*y*/,
                              const HalfStreams* /*halves*/) {
  refuse("norm_prepare");
}

void GpuBackend::hc_mix(WideShape /*shape*/, Dev<const float> /*u*/, Dev<const float> /*normed*/,
                        Dev<float> /*mixed*/) {
  refuse("hc_mix");
}

void GpuBackend::mtp_fold(WideShape /*shape*/, Dev<const float> /*fe*/, Dev<const float> /*fh*/,
                          Dev<float> /*wide*/) {
  refuse("mtp_fold");
}

void GpuBackend::ple_gate(WideShape /*shape*/, Dev<const float> /*key*/, Dev<const float> /*query*/,
                          Dev<const float> /*value*/, Dev<float> /*gated*/) {
  refuse("ple_gate");
}

}  // namespace sluice::backend

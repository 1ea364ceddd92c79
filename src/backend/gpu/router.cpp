// The router's choice, and the sum of what the chosen experts gave.
#include "backend/gpu/aligned.h"
#include "backend/gpu/gpu_backend.h"

namespace sluice::backend {

using gpu::Kernel;

void GpuBackend::router_topk(Dev<const float> logits, std::int64_t rows, std::int64_t n, std::int64_t k,
                             bool renormalise, Dev<std::uint32_t> index, Dev<float> weight) {
  if (rows == 0 || n == 0 || k == 0) return;
  device_->launch(Kernel::router_choose, {groups(rows, 1)},
                  kernels::RouterChooseArgs{logits.address(), index.address(), weight.address(), n, k,
                                            renormalise ? 1U : 0U});
}

void GpuBackend::combine_experts(Dev<const float> y, Dev<const float> weight, std::int64_t rows,
                                 std::int64_t slots, std::int64_t width, Dev<float> out) {
  if (rows == 0 || width == 0) return;
  device_->launch(Kernel::combine_slots,
                  {groups(rows, 1), groups(width, std::int64_t{4} * kernels::kCombineThreads)},
                  kernels::CombineSlotsArgs{y.address(), weight.address(), out.address(), slots, width,
                                            aligned_quads({y.address(), out.address()}, {width})});
}

}  // namespace sluice::backend

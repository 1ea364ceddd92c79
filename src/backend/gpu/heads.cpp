// Norm, rotation and gate of attention heads.
#include "backend/gpu/aligned.h"
#include "backend/gpu/gpu_backend.h"

namespace sluice::backend {

using gpu::Kernel;
using kernels::kHeadThreads;

void GpuBackend::norm_rope(HeadsIn in, Dev<const float> x, Dev<const float> w, float eps, const Rope& rope,
                           std::int64_t rows, Dev<float> out) {
  const std::int64_t count = rows * in.heads;
  if (count == 0 || in.dim == 0) return;
  device_->launch(
      Kernel::norm_rope_heads, {groups(count, kHeadThreads / 32)},
      kernels::NormRopeHeadsArgs{
          x.address(), w.address(), rope.cos.address(), rope.sin.address(), out.address(), in.heads, in.dim,
          in.row_stride, in.head_stride, count, rope.dims, eps,
          aligned_quads({x.address(), w.address(), rope.cos.address(), rope.sin.address(), out.address()},
                        {in.dim, in.row_stride, in.head_stride, rope.dims / 2})});
}

void GpuBackend::attention_gate(HeadsIn in, Dev<const float> gate, std::int64_t rows, Dev<float> out) {
  const std::int64_t quads = (in.dim + 3) / 4;
  const std::int64_t count = rows * in.heads * quads;
  if (count == 0) return;
  device_->launch(
      Kernel::gate_heads, {groups(count, kHeadThreads)},
      kernels::GateHeadsArgs{
          gate.address(), out.address(), in.heads, in.dim, in.row_stride, in.head_stride, quads, count,
          aligned_quads({gate.address(), out.address()}, {in.dim, in.row_stride, in.head_stride})});
}

}  // namespace sluice::backend

// Norm, rotation and gate of attention heads.
#include "backend/gpu/aligned.h"
#include "backend/gpu/gpu_backend.h"

namespace sluice::backend {

using gpu::Kernel;
using kernels::kHeadThreads;

void GpuBackend::norm_rope(HeadsIn in, Dev<const float> x, Dev<const float> w, float eps, const Rope& rope,
                           std::int64_t rows, Dev<float> out) {
  const HeadsPart part{in, x, w, rope, rows, out};
  norm_rope_many(std::span(&part, 1), eps);
}

void GpuBackend::norm_rope_many(std::span<const HeadsPart> parts, float eps) {
  kernels::NormRopeHeadsArgs args{};
  args.eps = eps;
  std::uint32_t count = 0;
  const auto flush = [&] {
    if (count == 0) return;
    for (std::uint32_t i = count; i < kernels::kHeadParts; ++i) args.first[i + 1] = args.first[count];
    device_->launch(Kernel::norm_rope_heads, {groups(args.first[count], kHeadThreads / 32)}, args);
    count = 0;
  };
  for (const HeadsPart& part : parts) {
    const HeadsIn& in = part.in;
    if (part.rows * in.heads == 0 || in.dim == 0) continue;
    if (count == kernels::kHeadParts) flush();
    kernels::NormRopePart& to = args.part[count];
    to.x = part.x.address();
    to.w = part.w.address();
    to.cos = part.rope.cos.address();
    to.sin = part.rope.sin.address();
    to.out = part.out.address();
    to.heads = static_cast<std::uint32_t>(in.heads);
    to.dim = static_cast<std::uint32_t>(in.dim);
    to.row_stride = static_cast<std::uint32_t>(in.row_stride);
    to.head_stride = static_cast<std::uint32_t>(in.head_stride);
    to.rotated = static_cast<std::uint32_t>(part.rope.dims);
    to.aligned = aligned_quads({part.x.address(), part.w.address(), part.rope.cos.address(),
                                part.rope.sin.address(), part.out.address()},
                               {in.dim, in.row_stride, in.head_stride, part.rope.dims / 2});
    args.first[count + 1] = args.first[count] + static_cast<std::uint32_t>(part.rows * in.heads);
    ++count;
  }
  flush();
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

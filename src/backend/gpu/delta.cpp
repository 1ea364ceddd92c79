// The causal convolution and the gated DeltaNet.
#include <algorithm>
#include <cmath>

#include "backend/gpu/aligned.h"
#include "backend/gpu/gpu_backend.h"

namespace sluice::backend {

using gpu::Kernel;
using kernels::kDeltaThreads;

void GpuBackend::causal_conv(ConvShape shape, Dev<const float> in, Dev<const float> w, Ring ring,
                             std::int64_t base, std::int64_t rows, Dev<const float> add, Dev<float> out) {
  if (rows == 0 || shape.channels == 0) return;
  const bool aligned =
      shape.kernel == kernels::kConvTaps &&
      aligned_quads({in.address(), w.address(), ring.data.address(), add.address(), out.address()},
                    {shape.channels}) != 0;
  const std::uint32_t parts = groups(shape.channels, std::int64_t{4} * kernels::kConvThreads);
  const std::uint32_t blocks = groups(rows, kernels::kConvRows);
  const kernels::ConvArgs args{
      in.address(),   w.address(),           ring.data.address(), add.address(), out.address(),
      shape.channels, shape.kernel,          shape.dilation,      ring.span,     base,
      rows,           blocks == 1 ? 1U : 0U, aligned ? 1U : 0U};
  device_->launch(Kernel::conv_rows, {parts, blocks}, args);
  // Of several blocks each may need what another one's rows push out of the ring.
  if (blocks > 1) {
    device_->launch(Kernel::conv_keep, {parts, groups(std::min(rows, ring.span), 1)}, args);
  }
}

void GpuBackend::delta_gates(Dev<const float> a, Dev<const float> b, Dev<const float> a_log,
                             Dev<const float> dt_bias, std::int64_t rows, std::int64_t value_heads,
                             Dev<float> decay, Dev<float> beta) {
  const std::int64_t count = rows * value_heads;
  if (count == 0) return;
  device_->launch(Kernel::delta_gate_rows, {groups(count, kDeltaThreads)},
                  kernels::DeltaGateRowsArgs{a.address(), b.address(), a_log.address(), dt_bias.address(),
                                             decay.address(), beta.address(), value_heads, count});
}

void GpuBackend::delta_scan(DeltaShape shape, Dev<const float> qkv, Dev<const float> decay,
                            Dev<const float> beta, std::int64_t rows, Dev<const float> state_in,
                            Dev<float> state_out, Dev<float> y) {
  if (rows == 0 && state_in.address() == state_out.address()) return;
  if (shape.key_dim > kernels::kScanKeys) return refuse("delta_scan: keys longer than 128");
  kernels::DeltaScanArgs args{};
  args.qkv = qkv.address();
  args.decay = decay.address();
  args.beta = beta.address();
  args.state_in = state_in.address();
  args.state_out = state_out.address();
  args.y = y.address();
  args.rows = rows;
  args.key_heads = static_cast<std::int32_t>(shape.key_heads);
  args.value_heads = static_cast<std::int32_t>(shape.value_heads);
  args.key_dim = static_cast<std::int32_t>(shape.key_dim);
  args.value_dim = static_cast<std::int32_t>(shape.value_dim);
  args.query_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape.key_dim)));
  args.aligned = aligned_quads({qkv.address(), state_in.address(), state_out.address()},
                               {shape.key_dim, shape.value_dim});
  const bool whole = args.aligned != 0 && shape.key_dim == kernels::kScanKeys &&
                     shape.value_dim % kernels::kScanColumns == 0;
  device_->launch(whole                ? Kernel::delta_scan_whole
                  : shape.key_dim > 64 ? Kernel::delta_scan_any
                                       : Kernel::delta_scan_short,
                  {groups(shape.value_dim, kernels::kScanColumns), groups(shape.value_heads, 1)}, args);
}

void GpuBackend::delta_gate_norm(Dev<const float> y, Dev<const float> z, Dev<const float> w, float eps,
                                 GateKind gate, std::int64_t rows, std::int64_t heads, std::int64_t dim,
                                 Dev<float> out) {
  const std::int64_t count = rows * heads;
  if (count == 0 || dim == 0) return;
  device_->launch(Kernel::delta_norm_heads, {groups(count, kDeltaThreads / 32)},
                  kernels::DeltaNormHeadsArgs{
                      y.address(), z.address(), w.address(), out.address(), count, dim, eps,
                      gate == GateKind::kSilu ? 1U : 0U,
                      aligned_quads({y.address(), z.address(), w.address(), out.address()}, {dim})});
}

}  // namespace sluice::backend

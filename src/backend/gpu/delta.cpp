// The causal convolution and the gated DeltaNet.
#include <algorithm>
#include <cmath>

#include "backend/gpu/aligned.h"
#include "backend/gpu/gpu_backend.h"

namespace sluice::backend {

using gpu::Kernel;
using kernels::kDeltaThreads;

namespace {

std::uint64_t address_of(Dev<const float> data) {
  return reinterpret_cast<std::uint64_t>(data.address());
}

float query_scale(std::int64_t key_dim) {
  return static_cast<float>(1 / std::sqrt(static_cast<double>(key_dim)));
}

}  // namespace

void GpuBackend::causal_conv(ConvShape shape, Dev<const float> in, Dev<const float> w, Ring ring,
                             std::int64_t base, std::int64_t rows, Dev<const float> add, Dev<float> out) {
  if (rows == 0 || shape.channels == 0) return;
  last_ring_ = address_of(ring.data);
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
  last_state_ = address_of(state_out);
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
  args.query_scale = query_scale(shape.key_dim);
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

void GpuBackend::delta_step(const DeltaStep& s) {
  const DeltaShape& d = s.shape;
  constexpr std::int64_t kDim = kernels::kDeltaStepDim;
  const bool aligned = aligned_quads({s.qkv.address(), s.conv.address(), s.ring.data.address(), s.z.address(),
                                      s.norm.address(), s.state_in.address(), s.state_out.address(),
                                      s.conv_out.address(), s.out.address()},
                                     {}) != 0;
  // The ring's places that are written must not be among those that other groups read.
  const bool fits = aligned && s.rows > 0 && s.rows <= std::int64_t{kernels::kDeltaStepRows} &&
                    d.key_dim == kDim && d.value_dim == kDim && s.kernel == kernels::kConvTaps &&
                    s.ring.span >= s.kernel - 1 + s.rows && s.base + s.rows < std::int64_t{1} << 31;
  if (!fits) return Backend::delta_step(s);
  kernels::DeltaStepArgs args{};
  args.qkv = s.qkv.address();
  args.conv = s.conv.address();
  args.ring = s.ring.data.address();
  args.a = s.a.address();
  args.b = s.b.address();
  args.a_log = s.a_log.address();
  args.dt_bias = s.dt_bias.address();
  args.z = s.z.address();
  args.norm = s.norm.address();
  args.state_in = s.state_in.address();
  args.state_out = s.state_out.address();
  args.kept_qkv = s.conv_out.address();
  args.kept_decay = s.decay.address();
  args.kept_beta = s.beta.address();
  args.out = s.out.address();
  args.base = static_cast<std::int32_t>(s.base);
  args.span = static_cast<std::int32_t>(s.ring.span);
  args.key_heads = static_cast<std::int32_t>(d.key_heads);
  args.value_heads = static_cast<std::int32_t>(d.value_heads);
  args.rows = static_cast<std::uint32_t>(s.rows);
  args.silu = s.gate == GateKind::kSilu ? 1U : 0U;
  args.early = last_state_ != address_of(s.state_in) && last_ring_ != address_of(s.ring.data) ? 1U : 0U;
  args.query_scale = query_scale(d.key_dim);
  args.eps = s.eps;
  device_->launch(Kernel::delta_step_whole, {groups(d.value_heads, 1)}, args);
  last_state_ = address_of(s.state_out);
  last_ring_ = address_of(s.ring.data);
}

}  // namespace sluice::backend

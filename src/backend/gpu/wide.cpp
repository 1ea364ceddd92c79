// The wide residual and the gate of the n-gram embedding.
#include "backend/gpu/aligned.h"
#include "backend/gpu/gpu_backend.h"

namespace sluice::backend {

using gpu::Grid;
using gpu::Kernel;
using kernels::kWideThreads;

namespace {

bool empty(WideShape shape) {
  return shape.rows == 0 || shape.streams == 0 || shape.width == 0;
}

/// A thread four elements of a row.
Grid row_parts(WideShape shape) {
  const std::int64_t each = std::int64_t{4} * kWideThreads;
  return {static_cast<std::uint32_t>(shape.rows),
          static_cast<std::uint32_t>((shape.width + each - 1) / each)};
}

Grid streams_of(WideShape shape) {
  return {static_cast<std::uint32_t>(shape.rows * shape.streams)};
}

}  // namespace

void GpuBackend::replicate(WideShape shape, Dev<const float> e, Dev<float> wide) {
  if (empty(shape)) return;
  device_->launch(Kernel::replicate_streams, row_parts(shape),
                  kernels::ReplicateStreamsArgs{e.address(), wide.address(), shape.streams, shape.width,
                                                aligned_quads({e.address(), wide.address()}, {shape.width})});
}

void GpuBackend::group_norm(WideShape shape, Dev<const float> x, Dev<const float> w, float shift, float eps,
                            Dev<float> y) {
  if (empty(shape)) return;
  device_->launch(
      Kernel::norm_streams, streams_of(shape),
      kernels::NormStreamsArgs{x.address(), nullptr, nullptr, nullptr, w.address(), y.address(),
                               shape.streams, shape.width, shift, eps,
                               aligned_quads({x.address(), w.address(), y.address()}, {shape.width})});
}

void GpuBackend::inject(WideShape shape, Dev<const float> out, Dev<const float> gate, Dev<float> wide) {
  if (empty(shape)) return;
  device_->launch(
      Kernel::inject_streams, row_parts(shape),
      kernels::InjectStreamsArgs{out.address(), gate.address(), wide.address(), shape.streams, shape.width,
                                 aligned_quads({out.address(), wide.address()}, {shape.width})});
}

void GpuBackend::norm_prepare(WideShape shape, Dev<const float> out, Dev<const float> gate, Dev<float> wide,
                              Dev<const float> w, float eps, Dev<float> y, const HalfStreams* halves) {
  if (empty(shape)) return;
  const bool injects = out && gate;
  kernels::NormStreamsArgs args{
      wide.address(), nullptr, nullptr, nullptr, w.address(), y.address(), shape.streams,
      shape.width,    0,       eps,     0};
  if (injects) {
    args.wide = wide.address();
    args.out = out.address();
    args.gate = gate.address();
  }
  args.aligned = aligned_quads({wide.address(), injects ? out.address() : nullptr, w.address(), y.address()},
                               {shape.width});
  device_->launch(Kernel::norm_streams, streams_of(shape), args);
  if (halves == nullptr) return;
  const std::int64_t count = shape.rows * shape.streams * shape.width;
  device_->launch(Kernel::halve_streams, {groups(count, std::int64_t{4} * kWideThreads)},
                  kernels::HalveStreamsArgs{y.address(), halves->even.address(), halves->odd.address(),
                                            halves->sums.address(), count});
}

void GpuBackend::hc_mix(WideShape shape, Dev<const float> u, Dev<const float> normed, Dev<float> mixed) {
  if (empty(shape)) return;
  device_->launch(Kernel::mix_streams, row_parts(shape),
                  kernels::MixStreamsArgs{
                      u.address(), normed.address(), mixed.address(), shape.streams, shape.width,
                      aligned_quads({u.address(), normed.address(), mixed.address()}, {shape.width})});
}

void GpuBackend::mtp_fold(WideShape shape, Dev<const float> fe, Dev<const float> fh, Dev<float> wide) {
  if (empty(shape)) return;
  device_->launch(
      Kernel::fold_streams, row_parts(shape),
      kernels::FoldStreamsArgs{fe.address(), fh.address(), wide.address(), shape.streams, shape.width,
                               aligned_quads({fe.address(), fh.address(), wide.address()}, {shape.width})});
}

void GpuBackend::ple_gate(WideShape shape, Dev<const float> key, Dev<const float> query,
                          Dev<const float> value, Dev<float> gated) {
  if (empty(shape)) return;
  device_->launch(
      Kernel::gate_streams, streams_of(shape),
      kernels::GateStreamsArgs{
          key.address(), query.address(), value.address(), gated.address(), shape.streams, shape.width,
          aligned_quads({key.address(), query.address(), value.address(), gated.address()}, {shape.width})});
}

}  // namespace sluice::backend

// Row utilities.
#include "backend/gpu/gpu_backend.h"

namespace sluice::backend {

using gpu::Kernel;
using kernels::kRowThreads;

void GpuBackend::gather_rows(Dev<const float> x, Dev<const std::uint32_t> index, std::int64_t rows,
                             std::int64_t width, Dev<float> out) {
  if (rows == 0 || width == 0) return;
  device_->launch(Kernel::gather_rows, {groups(width, kRowThreads), groups(rows, 1)},
                  kernels::GatherRowsArgs{x.address(), index.address(), out.address(), width});
}

void GpuBackend::scatter_add_rows(Dev<const float> y, Dev<const std::uint32_t> index, Dev<const float> weight,
                                  std::int64_t rows, std::int64_t width, Dev<float> out) {
  if (rows == 0 || width == 0) return;
  device_->launch(Kernel::scatter_add_rows, {groups(width, kRowThreads)},
                  kernels::ScatterAddRowsArgs{y.address(), index.address(), weight.address(), out.address(),
                                              rows, width});
}

void GpuBackend::shared_add_rows(Dev<const float> x, Dev<const float> y, Dev<const std::uint16_t> gate,
                                 std::int64_t rows, std::int64_t width, Dev<float> out) {
  if (rows == 0) return;
  device_->launch(Kernel::shared_add_rows, {groups(rows, 1)},
                  kernels::SharedAddRowsArgs{x.address(), y.address(), gate.address(), out.address(), width});
}

void GpuBackend::gated_add_rows(Dev<const float> y, Dev<const float> gate, std::int64_t rows,
                                std::int64_t width, Dev<float> out) {
  if (rows == 0 || width == 0) return;
  device_->launch(Kernel::gated_add_rows, {groups(width, kRowThreads), groups(rows, 1)},
                  kernels::GatedAddRowsArgs{y.address(), gate.address(), out.address(), width});
}

void GpuBackend::silu_rows(Dev<float> x, std::int64_t count, float div) {
  if (count == 0) return;
  device_->launch(Kernel::silu_rows, {groups(count, kRowThreads)},
                  kernels::SiluRowsArgs{x.address(), count, div});
}

void GpuBackend::silu_multiply(Dev<const float> gate, Dev<const float> up, std::int64_t count,
                               Dev<float> out) {
  if (count == 0) return;
  device_->launch(Kernel::silu_multiply, {groups(count, kRowThreads)},
                  kernels::SiluMultiplyArgs{gate.address(), up.address(), out.address(), count});
}

void GpuBackend::argmax_rows(Dev<const float> x, std::int64_t rows, std::int64_t width,
                             Dev<std::int32_t> index) {
  if (rows == 0) return;
  device_->launch(Kernel::argmax_rows, {groups(rows, 1)},
                  kernels::ArgmaxRowsArgs{x.address(), index.address(), width});
}

}  // namespace sluice::backend

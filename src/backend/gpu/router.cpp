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

kernels::GroupArgs GpuBackend::group_args(const Moe& moe) {
  const GroupedExperts& grouped = moe.grouped;
  const Dev<std::uint32_t> scratch = group_scratch_.get<std::uint32_t>(*this, 2 * moe.experts);
  return {moe.router_index.address(),
          moe.router_weight.address(),
          reinterpret_cast<const kernels::u64*>(moe.table.address()),
          reinterpret_cast<kernels::u64*>(grouped.entries.address()),
          grouped.begin.address(),
          grouped.pair_row.address(),
          grouped.pair_slot.address(),
          grouped.slot_weight.address(),
          scratch.address(),
          (scratch + moe.experts).address(),
          grouped.batch.rows,
          grouped.batch.slots,
          moe.experts,
          grouped.most};
}

void GpuBackend::group_experts(const kernels::GroupArgs& args) {
  if (args.rows * args.k <= std::int64_t{kernels::kFewPairs}) {
    device_->launch(Kernel::group_few, {1}, args);
    return;
  }
  device_->launch(Kernel::group_count, {groups(args.experts, 1)}, args);
  device_->launch(Kernel::group_places, {1}, args);
  device_->launch(Kernel::group_fill, {groups(args.experts, 1)}, args);
}

}  // namespace sluice::backend

// The token selector of sparse attention.
#include <algorithm>
#include <cmath>

#include "backend/gpu/gpu_backend.h"

namespace sluice::backend {

using gpu::Kernel;

void GpuBackend::index_block_keys(IndexShape shape, Dev<const float> raw_keys, std::int64_t first,
                                  std::int64_t last, Dev<const float> w, float eps, const Rope& rope,
                                  Dev<float> block_keys) {
  if (first >= last) return;
  device_->launch(Kernel::index_block_keys, {groups(last - first, kernels::kIndexSimds)},
                  kernels::IndexBlockKeysArgs{raw_keys.address(), w.address(), rope.cos.address(),
                                              rope.sin.address(), block_keys.address(), first, last,
                                              shape.head_dim, shape.ratio, rope.dims / 2, eps});
}

void GpuBackend::index_scores(IndexShape shape, Dev<const float> q, Dev<const float> block_keys,
                              Dev<const std::uint32_t> blocks, std::int64_t rows, std::int64_t stride,
                              Dev<float> scores) {
  if (rows == 0 || stride == 0) return;
  kernels::IndexScoresArgs args{q.address(),
                                block_keys.address(),
                                blocks.address(),
                                scores.address(),
                                rows,
                                stride,
                                shape.heads,
                                shape.head_dim,
                                rows,
                                static_cast<float>(1 / std::sqrt(static_cast<double>(shape.head_dim)))};
  const bool heads_fit = shape.heads <= 16 && (shape.heads & (shape.heads - 1)) == 0;
  if (!heads_fit || shape.head_dim > std::int64_t{kernels::kIndexDim}) {
    device_->launch(Kernel::index_scores_any, {groups(stride, kernels::kIndexSimds), groups(rows, 1)}, args);
    return;
  }
  // Rows share the keys that a group holds: as many of them as still leave enough groups.
  const std::int64_t staged = kernels::kIndexTiles * 16 / shape.heads;
  const std::int64_t across = groups(stride, kernels::kIndexBlocks);
  const std::int64_t wanted = std::max<std::int64_t>(1, 2 * device_->multiprocessors() / across);
  const std::int64_t stages = groups(rows, staged);
  args.rows_each = staged * groups(stages, std::min(wanted, stages));
  device_->launch(Kernel::index_scores, {groups(across, 1), groups(rows, args.rows_each)}, args);
}

void GpuBackend::index_select(IndexShape shape, Dev<const float> scores, std::int64_t score_stride,
                              Dev<const std::uint32_t> visible, std::int64_t rows, Dev<std::uint32_t> tokens,
                              std::int64_t token_stride, Dev<std::uint32_t> count, Dev<std::uint8_t> dense,
                              Dev<std::uint32_t> mask, std::int64_t mask_words) {
  if (rows == 0) return;
  device_->launch(Kernel::index_select, {groups(rows, 1)},
                  kernels::IndexSelectArgs{scores.address(), visible.address(), tokens.address(),
                                           count.address(), dense.address(), mask.address(), score_stride,
                                           token_stride, mask_words, static_cast<std::uint32_t>(shape.ratio),
                                           static_cast<std::uint32_t>(shape.block_budget)});
}

}  // namespace sluice::backend

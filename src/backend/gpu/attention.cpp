// Attention over selected tokens, and the softmax of scores that other kernels made.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "backend/gpu/gpu_backend.h"

namespace sluice::backend {

using gpu::Kernel;

namespace {

/// Partial sums of one launch at most: rows are taken in parts beyond.
constexpr std::int64_t kPartialBytes = std::int64_t{64} << 20;
/// Rows of one launch at most: a limit of grids.
constexpr std::int64_t kLaunchRows = 65535;
/// Groups that a multiprocessor holds at once.
constexpr std::int64_t kResident = 2;

kernels::AttentionTask attention_task(AttentionShape shape, Dev<const float> q,
                                      const TokenSelection& selection, Dev<float> out) {
  kernels::AttentionTask task{};
  task.q = q.address();
  task.out = out.address();
  task.heads = static_cast<std::int32_t>(shape.heads);
  task.kv_heads = static_cast<std::int32_t>(shape.kv_heads);
  task.dim = static_cast<std::int32_t>(shape.head_dim);
  task.scale = static_cast<float>(std::log2(std::exp(1.0)) / std::sqrt(static_cast<double>(shape.head_dim)));
  task.tokens = selection.tokens.address();
  task.count = selection.count.address();
  task.dense = selection.dense.address();
  task.stride = selection.stride;
  return task;
}

}  // namespace

/// Gives groups whole rows, sections or pieces of them: the coarsest that fills the device. Bits are the
/// same.
template <class Launch>
void GpuBackend::attend(kernels::AttentionTask task, std::int64_t rows, std::int64_t most, Launch launch) {
  if (rows == 0) return;
  if (task.dim > static_cast<std::int64_t>(kernels::kAttentionDim)) {
    return refuse(
        fmt::format("attention: heads of {} dimensions, of {} at most", task.dim, kernels::kAttentionDim));
  }
  const std::int64_t head_tiles =
      (task.heads / task.kv_heads + kernels::kHeadTile - 1) / std::int64_t{kernels::kHeadTile};
  const std::int64_t groups_per_unit = task.kv_heads * head_tiles;
  const std::int64_t pieces = groups(most, kernels::kPieceTokens);
  const std::int64_t sections = groups(pieces, kernels::kSectionPieces);
  const std::int64_t wanted = kResident * device_->multiprocessors();
  std::int64_t units = 0;
  if (pieces > 1 && rows * groups_per_unit < wanted) {
    task.unit = rows * groups_per_unit * sections < wanted ? 1 : std::int32_t{kernels::kSectionPieces};
    units = task.unit == 1 ? pieces : sections;
  }
  task.units = static_cast<std::int32_t>(units);
  std::int64_t at_once = kLaunchRows;
  const std::int64_t floats = units * task.heads * (task.dim + 2);  // of a row
  if (units > 0) {
    at_once =
        std::clamp<std::int64_t>(kPartialBytes / (floats * std::int64_t{sizeof(float)}), 1, kLaunchRows);
    const Dev<float> partial = attention_partial_.get<float>(*this, std::min(rows, at_once) * floats);
    if (!partial) return;
    task.sums = partial.address();
    task.stats = partial.address() + std::min(rows, at_once) * units * task.heads * task.dim;
  }
  const bool listed = !(task.tokens == nullptr);
  for (std::int64_t at = 0; at < rows; at += at_once) {
    const std::int64_t part_rows = std::min(at_once, rows - at);
    kernels::AttentionTask part = task;
    const std::int64_t width = std::int64_t{task.heads} * task.dim;
    part.q = task.q + at * width;
    part.out = task.out + at * width;
    if (listed) part.tokens = task.tokens + at * task.stride;
    part.count = task.count + at;
    if (!(task.dense == nullptr)) part.dense = task.dense + at;
    launch(part, gpu::Grid{groups(std::max<std::int64_t>(units, 1), 1), groups(groups_per_unit, 1),
                           groups(part_rows, 1)});
    if (units > 0) {
      device_->launch(Kernel::attention_merge, {groups(task.heads, 1), groups(part_rows, 1)},
                      kernels::AttentionMergeArgs{part});
    }
  }
}

void GpuBackend::attention(AttentionShape shape, Dev<const float> q, Dev<const float> keys,
                           Dev<const float> values, const TokenSelection& selection, std::int64_t rows,
                           Dev<float> out) {
  attend(attention_task(shape, q, selection, out), rows, selection.most,
         [&](kernels::AttentionTask part, gpu::Grid grid) {
           const bool usual = shape.head_dim == kernels::kAttentionDim;
           device_->launch(usual ? Kernel::attention_256 : Kernel::attention_any, grid,
                           kernels::AttentionArgs{part, keys.address(), values.address()});
         });
}

void GpuBackend::attention_q8(AttentionShape shape, Dev<const float> q, const KeysValuesQ8& cache,
                              const TokenSelection& selection, std::int64_t rows, Dev<float> out) {
  attend(attention_task(shape, q, selection, out), rows, selection.most,
         [&](kernels::AttentionTask part, gpu::Grid grid) {
           device_->launch(
               Kernel::attention_q8, grid,
               kernels::AttentionQ8Args{part, cache.keys.address(), cache.values.address(),
                                        cache.key_scales.address(), cache.value_scales.address()});
         });
}

void GpuBackend::quantise_q8(Dev<const float> x, std::int64_t many, Dev<std::int8_t> codes,
                             Dev<std::uint16_t> scales) {
  if (many == 0) return;
  device_->launch(Kernel::quantise_q8, {groups(many, kernels::kRowThreads / kQ8Group)},
                  kernels::QuantiseQ8Args{x.address(), codes.address(), scales.address(), many});
}

void GpuBackend::softmax_selected(Dev<const float> scores, Dev<const std::uint32_t> block_mask,
                                  std::int64_t rows, std::int64_t stride, std::int64_t queries,
                                  std::int64_t base, std::int64_t ratio, std::int64_t mask_words,
                                  Dev<std::uint16_t> out) {
  if (rows == 0 || stride == 0) return;
  device_->launch(Kernel::softmax_selected, {groups(rows, 1)},
                  kernels::SoftmaxSelectedArgs{scores.address(), block_mask.address(), out.address(), stride,
                                               queries, base, ratio, mask_words});
}

}  // namespace sluice::backend

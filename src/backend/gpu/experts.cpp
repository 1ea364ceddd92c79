// Routed experts.
#include <algorithm>
#include <bit>

#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/weights_of.h"

namespace sluice::backend {

using gpu::Kernel;
using namespace kernels;  // NOLINT: names of this layer's own kernels

namespace {

/// From so many pairs an entry on reading its record once pays for rounding the columns beforehand.
constexpr std::int64_t kManyPairs = 12;

struct CodesKernels {
  Format format;
  Kernel gate_up, down, many_gate_up, many_down, wide_gate_up, wide_down;
};
#define SLUICE_CODES_KERNELS(format, name)                                       \
  {                                                                              \
    Format::format, Kernel::experts_gate_up_##name, Kernel::experts_down_##name, \
        Kernel::experts_gemm_gate_up_##name, Kernel::experts_gemm_down_##name,   \
        Kernel::experts_wide_gate_up_##name, Kernel::experts_wide_down_##name    \
  }
constexpr CodesKernels kCodesKernels[] = {SLUICE_CODES_KERNELS(kQ4, q4), SLUICE_CODES_KERNELS(kQ8, q8),
                                          SLUICE_CODES_KERNELS(kQ3, q3), SLUICE_CODES_KERNELS(kQ2, q2)};
#undef SLUICE_CODES_KERNELS

}  // namespace

void GpuBackend::experts(const ExpertBatch& batch, std::int64_t first, std::int64_t last, std::int64_t pairs,
                         Dev<const float> x, Dev<float> y) {
  if (first == last || pairs == 0) return;
  const auto& g = batch.geometry;
  const auto hidden = expert_hidden_.get<float>(*this, pairs * g.inter);
  const bool blocks = g.hidden % kBlock == 0 && g.inter % kBlock == 0 && g.group % kBlock == 0 &&
                      std::has_single_bit(static_cast<u32>(g.group) / kBlock) &&
                      segments_of(std::max(g.hidden, g.inter)) * 2 <= kMatvecTasks;
  ExpertsArgs args{reinterpret_cast<const u64*>(batch.entries.address() + first),
                   batch.begin.address() + first,
                   batch.pair_row.address(),
                   batch.pair_slot.address(),
                   x.address(),
                   hidden.address(),
                   y.address(),
                   g.hidden,
                   g.inter,
                   batch.slots,
                   g.group,
                   static_cast<u32>(g.hidden / g.group),
                   static_cast<u32>(g.inter / g.group),
                   group_shift(g.group),
                   1,
                   blocks ? 0 : 1};
  const auto has = [&](Format format) { return (batch.formats >> static_cast<int>(format) & 1U) != 0; };
  const auto entries = groups(last - first, 1);
  if (!blocks || has(Format::kF32) || has(Format::kBf16)) {
    device_->launch(Kernel::experts_gate_up_any, {groups(g.inter, kMatvecSimds), entries}, args);
    device_->launch(Kernel::experts_down_any, {groups(g.hidden, kMatvecSimds), entries}, args);
  }
  if (!blocks) return;
  // gemm.h's experts take one span of inputs.
  const bool one_span = std::max(g.hidden, g.inter) <= kSpanBlocks * kBlock;
  if (one_span && pairs >= kManyPairs * (last - first))
    return experts_of_many(batch, args, last - first, pairs, x);
  ExpertsArgs down = args;
  down.tiles =
      static_cast<i32>(std::min<std::int64_t>(kMatvecMostTiles, kMatvecTasks / segments_of(g.inter)));
  for (const CodesKernels& kernels : kCodesKernels) {
    if (!has(kernels.format)) continue;
    device_->launch(kernels.gate_up, {groups(g.inter, kTileRows), entries}, args);
    device_->launch(kernels.down, {groups(groups(g.hidden, kTileRows), down.tiles), entries}, down);
  }
}

void GpuBackend::experts_of_many(const ExpertBatch& batch, const ExpertsArgs& args, std::int64_t entries,
                                 std::int64_t pairs, Dev<const float> x) {
  const auto& g = batch.geometry;
  const bool wide = device_->multiplies_wide();
  const u32 columns = wide ? kWideColumns : kGemmColumns;
  const std::int64_t most_tiles = entries + pairs / columns;
  const Dev<u32> tiles = expert_tiles_.get<u32>(*this, 2 * most_tiles + 1);
  const Dev<u32> firsts = tiles + most_tiles;
  const Dev<u32> count = firsts + most_tiles;
  device_->launch(
      Kernel::expert_tiles, {1},
      ExpertTilesArgs{args.begin, tiles.address(), firsts.address(), count.address(), entries, columns});
  // Wide multiplications have a column for each pair, in tiles.
  WideRows from{tiles.address(), firsts.address(), count.address(), args.begin, args.pair_row, 0};
  ExpertsGemmArgs gemm{
      args, wide ? prepare_wide(from, x, 2 * most_tiles, g.hidden) : prepare_columns(x, batch.rows, g.hidden),
      tiles.address(), firsts.address(), count.address()};
  for (const CodesKernels& kernels : kCodesKernels) {
    if ((batch.formats >> static_cast<int>(kernels.format) & 1U) == 0) continue;
    device_->launch(wide ? kernels.wide_gate_up : kernels.many_gate_up,
                    {groups(g.inter, kGemmRows / 2), groups(most_tiles, 1)}, gemm);
  }
  const auto hidden = expert_hidden_.get<float>(*this, pairs * g.inter);
  from.pair_row = nullptr;
  gemm.x =
      wide ? prepare_wide(from, hidden, 2 * most_tiles, g.inter) : prepare_columns(hidden, pairs, g.inter);
  for (const CodesKernels& kernels : kCodesKernels) {
    if ((batch.formats >> static_cast<int>(kernels.format) & 1U) == 0) continue;
    device_->launch(wide ? kernels.wide_down : kernels.many_down,
                    {groups(g.hidden, kGemmRows), groups(most_tiles, 1)}, gemm);
  }
}

}  // namespace sluice::backend

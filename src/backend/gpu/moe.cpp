// A layer's experts, from the router to their sum, without the host.
#include <algorithm>
#include <bit>

#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/weights_of.h"

namespace sluice::backend {

using gpu::Kernel;
using namespace kernels;  // NOLINT: names of this layer's own kernels

namespace {

constexpr std::int64_t kFewRows = 8;
/// From so many rows on there are tiles enough for every SIMD group to have its own.
constexpr std::int64_t kMoeTilesRows = 3;

/// Gate and up, and down: of one row or two, and of more.
struct MoeKernels {
  Format format;
  Kernel few[2], tiles[2];
};
constexpr MoeKernels kMoeKernels[] = {{Format::kQ4,
                                       {Kernel::moe_gate_up_q4, Kernel::moe_down_q4},
                                       {Kernel::moe_gate_up_tiles_q4, Kernel::moe_down_tiles_q4}},
                                      {Format::kQ8,
                                       {Kernel::moe_gate_up_q8, Kernel::moe_down_q8},
                                       {Kernel::moe_gate_up_tiles_q8, Kernel::moe_down_tiles_q8}},
                                      {Format::kQ3,
                                       {Kernel::moe_gate_up_q3, Kernel::moe_down_q3},
                                       {Kernel::moe_gate_up_tiles_q3, Kernel::moe_down_tiles_q3}},
                                      {Format::kQ2,
                                       {Kernel::moe_gate_up_q2, Kernel::moe_down_q2},
                                       {Kernel::moe_gate_up_tiles_q2, Kernel::moe_down_tiles_q2}}};

}  // namespace

void GpuBackend::moe(const Moe& moe, Dev<const float> x, Dev<float> out) {
  const ExpertBatch& batch = moe.grouped.batch;
  const std::int64_t rows = batch.rows;
  if (rows == 0) return;
  const Projection gates[] = {{moe.router, moe.router_logits}, {moe.shared_scalar, moe.shared_weight}};
  linear_many(gates, x, rows);
  if (moe_of_few(moe, x, out)) return;
  router_topk(moe.router_logits, rows, moe.experts, batch.slots, moe.renormalise, moe.router_index,
              moe.router_weight);
  group_experts(group_args(moe));
  experts(batch, 0, moe.grouped.most, rows * batch.slots, x, moe.expert_out);
  const Projection shared[] = {{moe.shared_gate, moe.gate}, {moe.shared_up, moe.up}};
  linear_many(shared, x, rows);
  silu_multiply(moe.gate, moe.up, rows * moe.shared_gate.out, moe.gate);
  linear(moe.shared_down, moe.gate, rows, moe.shared_out);
  combine_experts(moe.expert_out, moe.grouped.slot_weight, rows, batch.slots, batch.geometry.hidden, out);
  gated_add_rows(moe.shared_out, moe.shared_weight, rows, batch.geometry.hidden, out);
}

/// A decode step's: one launch for the choice, one for gate and up, one for down, one for the sum.
bool GpuBackend::moe_of_few(const Moe& moe, Dev<const float> x, Dev<float> out) {
  const ExpertBatch& batch = moe.grouped.batch;
  const auto& g = batch.geometry;
  const std::int64_t rows = batch.rows;
  if (rows > kFewRows || rows * batch.slots > std::int64_t{kFewPairs}) return false;
  if (moe.experts > std::int64_t{32 * kRouterKept} ||
      batch.slots > std::min<std::int64_t>(kRouterFew, moe.experts)) {
    return false;
  }
  // The kernels read the scales of four blocks at once, and of two.
  if (g.group != std::int64_t{kBlock} || g.hidden % (4 * kBlock) != 0 || g.inter % (2 * kBlock) != 0)
    return false;
  const auto has = [&](Format format) { return (batch.formats >> static_cast<int>(format) & 1U) != 0; };
  if (has(Format::kF32) || has(Format::kBf16)) return false;

  const GroupArgs group = group_args(moe);
  const RouterChooseArgs choose{moe.router_logits.address(),
                                moe.router_index.address(),
                                moe.router_weight.address(),
                                moe.experts,
                                batch.slots,
                                moe.renormalise ? 1U : 0U};
  constexpr std::int64_t kSpan = static_cast<std::int64_t>(kSpanSegments) * kSegment;
  const std::int64_t up_sides = 4 * kTileRows * (g.hidden / g.group);  // of a tile of each matrix
  const std::int64_t down_sides = 2 * kTileRows * (g.inter / g.group);
  const bool of_tiles = rows >= kMoeTilesRows && g.hidden <= kSpan && g.inter <= kSpan &&
                        up_sides <= std::int64_t{kMoeUpSides} && down_sides <= std::int64_t{kMoeDownSides} &&
                        segments_of(g.inter) * rows <= std::int64_t{kMoeDownUnits};
  RoundArgs round{};
  std::int64_t units = 0;
  if (of_tiles) {
    units = segments_of(g.hidden) * rows;
    round = rounding(x, rows, g.hidden);
  }
  device_->launch(Kernel::route_few, {1 + groups(units, kFewPairs / 32)}, RouteFewArgs{choose, group, round});

  const std::int64_t pairs = rows * batch.slots;
  MoeArgs args{};
  args.experts = {group.entries,
                  group.begin,
                  group.pair_row,
                  group.pair_slot,
                  x.address(),
                  expert_hidden_.get<float>(*this, (pairs + rows) * g.inter).address(),
                  moe.expert_out.address(),
                  g.hidden,
                  g.inter,
                  batch.slots,
                  g.group,
                  static_cast<u32>(g.hidden / g.group),
                  static_cast<u32>(g.inter / g.group),
                  group_shift(g.group),
                  1,
                  0};
  args.entries = static_cast<u32>(moe.grouped.most);
  args.rows = static_cast<u32>(rows);
  args.shared_format = static_cast<i32>(moe.shared_gate.format);
  args.shared_gate = weights_of(moe.shared_gate);
  args.shared_up = weights_of(moe.shared_up);
  args.shared_down = weights_of(moe.shared_down);
  args.shared_y = moe.shared_out.address();
  args.round = round;
  const auto aligned = [](const Matrix& w) {
    return ((reinterpret_cast<std::uintptr_t>(w.scales.address()) |
             reinterpret_cast<std::uintptr_t>(w.biases.address())) &
            15U) == 0;
  };
  const auto fits = [&](const Matrix& w) {
    return aligned(w) && w.format == moe.shared_gate.format && is_quantised(w.format) && w.group == g.group &&
           w.in % (w.in == g.inter ? 2 * kBlock : 4 * kBlock) == 0 && w.out > 64 && w.out % kTileRows == 0;
  };
  const bool shared = fits(moe.shared_gate) && fits(moe.shared_up) && fits(moe.shared_down) &&
                      moe.shared_gate.out == g.inter &&
                      (has(moe.shared_gate.format) || moe.shared_gate.format == Format::kQ4);
  const auto tiles_of = [&](std::int64_t width, std::uint32_t matrices) {
    if (of_tiles && matrices == 2) return kMoeTilesSimds;  // of a group
    if (of_tiles) {
      // Of a SIMD group, so that all run at once.
      const std::uint32_t simds = device_->multiprocessors() * kMoeTilesResident * kMoeTilesSimds;
      const std::uint32_t all = groups(width, kTileRows) * (args.entries + 1);
      return std::clamp((all + simds / 2) / simds, 1U, kMoeDownSides / static_cast<u32>(down_sides));
    }
    // Whole tiles only, and groups that all run at once where that is possible.
    const auto tiles = groups(width, kTileRows);
    std::uint32_t take = std::clamp(
        groups(std::int64_t{tiles} * (args.entries + 1), std::int64_t{2} * device_->multiprocessors()), 1U,
        kMoeTiles / matrices);
    while (tiles % take != 0) ++take;
    while (take > kMoeTiles / matrices || tiles % take != 0) --take;
    return take;
  };
  const auto launch = [&](bool down) {
    const std::int64_t width = down ? g.hidden : g.inter;
    args.experts.tiles = static_cast<i32>(tiles_of(width, down ? 1 : 2));
    const std::int64_t each = std::int64_t{args.experts.tiles} * (of_tiles && down ? kMoeTilesSimds : 1);
    bool waits = shared;  // for its launch
    for (const MoeKernels& kernels : kMoeKernels) {
      if (!has(kernels.format)) continue;
      // The shared expert goes with those of its precision; one of 4 bits, without such, with any others.
      const bool with_shared =
          waits && (moe.shared_gate.format == kernels.format || !has(moe.shared_gate.format));
      if (with_shared) waits = false;
      device_->launch((of_tiles ? kernels.tiles : kernels.few)[down ? 1 : 0],
                      {groups(groups(width, kTileRows), each), args.entries + (with_shared ? 1U : 0U)}, args);
    }
  };
  launch(false);
  launch(true);
  if (!shared) {
    const Projection parts[] = {{moe.shared_gate, moe.gate}, {moe.shared_up, moe.up}};
    linear_many(parts, x, rows);
    silu_multiply(moe.gate, moe.up, rows * moe.shared_gate.out, moe.gate);
    linear(moe.shared_down, moe.gate, rows, moe.shared_out);
  }
  device_->launch(
      Kernel::moe_combine, {groups(g.hidden, kMoeCombineThreads), groups(rows, 1)},
      MoeCombineArgs{moe.expert_out.address(), moe.grouped.slot_weight.address(), moe.shared_out.address(),
                     moe.shared_weight.address(), out.address(), batch.slots, g.hidden});
  return true;
}

}  // namespace sluice::backend

// Projections, and rows of a table.
#include <algorithm>
#include <bit>

#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/weights_of.h"

namespace sluice::backend {

using gpu::Kernel;
using namespace kernels;  // NOLINT: names of this layer's own kernels

namespace {

/// Matrices that are computed in float32: few outputs cost nothing, and gates and routers are worth it.
constexpr std::int64_t kPlainOutputs = 64;
constexpr std::int64_t kPlainBf16Outputs = 1024;

/// Whether the matrix units can take it: whole blocks of 64 inputs, one scale for each or for several.
bool has_blocks(const Matrix& w) {
  if (w.in % kBlock != 0 || w.format == Format::kF32) return false;
  return !is_quantised(w.format) ||
         std::has_single_bit(static_cast<u32>(w.group) / kBlock * (w.group % kBlock == 0));
}

/// Whether the kernels for a decode step take it: whole tiles, a 32-bit number names every place in it, and
/// `sides` blocks' scales can be read at once.
bool is_short(const Matrix& w, std::int64_t sides) {
  return w.out % kTileRows == 0 && w.out * w.row_bytes() < std::int64_t{1} << 32 &&
         w.group == std::int64_t{kBlock} && w.in / w.group % sides == 0;
}

bool is_plain(const Matrix& w) {
  if (w.in % 8 != 0 || w.format == Format::kQ3 || w.format == Format::kQ2) return false;
  return w.out <= (w.format == Format::kBf16 ? kPlainBf16Outputs : kPlainOutputs) || !has_blocks(w);
}

/// How a matrix is multiplied: by its shape and format alone, never by the number of rows.
Kernel matvec_kernel(const Matrix& w) {
  if (is_plain(w)) return Kernel::plain_rows;
  if (!has_blocks(w)) return Kernel::matvec_any;
  switch (w.format) {
    case Format::kBf16:
      return Kernel::matvec_bf16;
    case Format::kQ4:
      return Kernel::matvec_q4;
    case Format::kQ8:
      return Kernel::matvec_q8;
    case Format::kQ3:
      return Kernel::matvec_q3;
    case Format::kQ2:
      return Kernel::matvec_q2;
    case Format::kF32:
      break;
  }
  return Kernel::matvec_any;
}

/// The kernel for many rows that gives the same bits, if there is one.
Kernel gemm_kernel(Kernel matvec, bool wide) {
  switch (matvec) {
    case Kernel::matvec_q4:
      return wide ? Kernel::wide_q4 : Kernel::gemm_q4;
    case Kernel::matvec_q8:
      return wide ? Kernel::wide_q8 : Kernel::gemm_q8;
    case Kernel::matvec_q3:
      return wide ? Kernel::wide_q3 : Kernel::gemm_q3;
    case Kernel::matvec_q2:
      return wide ? Kernel::wide_q2 : Kernel::gemm_q2;
    default:
      return Kernel::kCount;
  }
}

/// Rows of a decode step: the kernels for few rows take so many.
constexpr std::int64_t kStepRows = 8;
/// Up to so many rows the two launches of hyper.h are faster than the five they stand for.
constexpr std::int64_t kHyperFusedRows = 8;
/// From so many rows on their norms are a launch of their own: each group of the next would do them one by
/// one.
constexpr std::int64_t kHyperNormedRows = 3;
/// From so many rows on a launch that rounds them pays: every group would round them again.
constexpr std::int64_t kProjectRoundedRows = 3;
/// From so many rows on reading the weights once pays for rounding the columns beforehand.
constexpr std::int64_t kGemmLeastRows = 32;

}  // namespace

std::uint32_t group_shift(int group) {
  return group % kBlock == 0 ? static_cast<std::uint32_t>(std::countr_zero(static_cast<u32>(group) / kBlock))
                             : 0;
}

Weights weights_of(const Matrix& w) {
  return {reinterpret_cast<const u8*>(w.data.address()),
          w.scales.address(),
          w.biases.address(),
          w.out,
          w.in,
          w.row_bytes(),
          static_cast<i32>(w.format),
          w.group,
          static_cast<u32>(w.in / w.group),
          group_shift(w.group)};
}

void GpuBackend::embed_rows(const Matrix& table, Dev<const std::int32_t> ids, std::int64_t rows,
                            Dev<float> out) {
  if (rows == 0) return;
  device_->launch(Kernel::embed_rows, {groups(table.in, kEmbedThreads), groups(rows, 1)},
                  EmbedRowsArgs{weights_of(table), ids.address(), out.address()});
}

Prepared GpuBackend::prepare_columns(Dev<const float> x, std::int64_t rows, std::int64_t in) {
  const std::int64_t blocks = in / kBlock;
  const std::int64_t segments = segments_of(in);
  const auto words = prepared_words_.get<u32>(*this, rows * blocks * 32);
  const auto sums = prepared_sums_.get<float>(*this, rows * blocks);
  const auto downs = prepared_downs_.get<float>(*this, rows * segments);
  device_->launch(
      Kernel::prepare_columns, {groups(rows * segments, kPrepareThreads / 4)},
      PrepareColumnsArgs{x.address(), words.address(), sums.address(), downs.address(), rows, in});
  return {words.address(), sums.address(), downs.address()};
}

RoundArgs GpuBackend::rounding(Dev<const float> x, std::int64_t rows, std::int64_t in) {
  const std::int64_t units = segments_of(in) * rows;
  return {x.address(), rounded_words_.get<u32>(*this, units * kUnitWords).address(),
          rounded_sides_.get<float>(*this, kSideSets * units * kUnitSides).address(), static_cast<u32>(in),
          static_cast<u32>(rows)};
}

Prepared GpuBackend::prepare_wide(const WideRows& from, Dev<const float> x, std::int64_t tiles,
                                  std::int64_t in) {
  const auto words = prepared_words_.get<u32>(*this, tiles * (in / kBlock) * kWideWords);
  device_->launch(Kernel::prepare_wide, {groups(in, kSegment), groups(tiles, 1)},
                  PrepareWideArgs{x.address(), words.address(), from, in});
  return {words.address(), nullptr, nullptr};
}

Prepared GpuBackend::prepare_rows(Dev<const float> x, std::int64_t rows, std::int64_t in) {
  if (!device_->multiplies_wide()) return prepare_columns(x, rows, in);
  WideRows from{};
  from.rows = rows;
  return prepare_wide(from, x, groups(rows, kGemmColumns), in);
}

void GpuBackend::gemm(const Matrix& w, const Prepared& columns, std::int64_t rows, Dev<float> y, bool silu,
                      float div) {
  const bool wide = device_->multiplies_wide();
  device_->launch(gemm_kernel(matvec_kernel(w), wide),
                  {groups(w.out, kGemmRows), groups(rows, wide ? kWideColumns : kGemmColumns)},
                  GemmArgs{weights_of(w), columns, y.address(), rows, silu ? 1 : 0, div});
}

void GpuBackend::matvec(const Matrix& w, Dev<const float> x, std::int64_t rows, Dev<float> y, bool silu,
                        float div) {
  if (rows == 0 || w.out == 0) return;
  const Kernel kernel = matvec_kernel(w);
  if (rows >= kGemmLeastRows && gemm_kernel(kernel, false) != Kernel::kCount) {
    return gemm(w, prepare_rows(x, rows, w.in), rows, y, silu, div);
  }
  if (kernel == Kernel::plain_rows && rows > kStepRows) {
    const auto tasks = std::int64_t{groups(w.out, kPlainQuad)} * groups(rows, kPlainQuad);
    device_->launch(Kernel::plain_many, {groups(tasks, kPlainSimds)},
                    PlainArgs{weights_of(w), x.address(), y.address(), rows, silu ? 1 : 0, div});
    return;
  }
  if (kernel == Kernel::plain_rows) {
    device_->launch(kernel, {groups(w.out, kPlainSimds), groups(rows, kPlainRows)},
                    PlainArgs{weights_of(w), x.address(), y.address(), rows, silu ? 1 : 0, div});
    return;
  }
  if (rows <= kStepRows && is_short(w, 4) && (kernel == Kernel::matvec_q4 || kernel == Kernel::matvec_q8)) {
    const Projection one{w, y};
    project(std::span(&one, 1), x, rows, silu, div);
    return;
  }
  const std::uint32_t column_groups = groups(rows, kTileColumns);
  MatvecArgs args{weights_of(w), x.address(), y.address(), rows, 1, silu ? 1 : 0, div};
  std::uint32_t wide = 0;
  if (kernel == Kernel::matvec_any) {
    wide = groups(w.out, kMatvecSimds);
  } else {
    // Groups enough to fill the device a few times over; beyond that a group's tiles share its columns.
    const auto tiles = static_cast<std::int64_t>(groups(w.out, kTileRows));
    if (kernel != Kernel::matvec_bf16) {
      const std::int64_t enough = std::int64_t{device_->multiprocessors()} * 8;
      args.tiles = static_cast<i32>(std::clamp<std::int64_t>(tiles / enough, 1, kMatvecMostTiles));
    }
    wide = groups(tiles, args.tiles);
  }
  device_->launch(kernel, {wide, column_groups}, args);
}

void GpuBackend::project(std::span<const Projection> parts, Dev<const float> x, std::int64_t rows, bool silu,
                         float div) {
  for (const Format format : {Format::kQ4, Format::kQ8}) {
    ProjectArgs args{};
    std::uint32_t coded = 0;
    std::uint32_t plain = 0;
    args.x = x.address();
    args.in = parts.front().w.in;
    args.rows = static_cast<u32>(rows);
    args.silu = silu ? 1 : 0;
    args.div = div;
    const bool rounded = rows >= kProjectRoundedRows;
    const auto flush = [&] {
      if (coded + plain == 0) return;
      for (std::uint32_t i = coded; i < kProjectCoded; ++i) args.first_tile[i + 1] = args.first_tile[coded];
      for (std::uint32_t i = plain; i < kProjectPlain; ++i) args.first_plain[i + 1] = args.first_plain[plain];
      // Two groups a multiprocessor, once: each rounds the rows for all its tiles.
      const std::uint32_t tiles = args.first_tile[coded];
      const std::uint32_t most = 2 * device_->multiprocessors();
      args.tiles = std::clamp(groups(tiles, most), 1U, kProjectTiles);
      args.coded_groups = std::min(groups(tiles, args.tiles), most);
      // Groups that do not fit beside the others would begin when one of those has ended.
      std::uint32_t plain_groups =
          groups(std::int64_t{args.first_plain[plain]} * groups(rows, kPlainTogether), kProjectSimds);
      if (args.coded_groups < most) plain_groups = std::min(plain_groups, most - args.coded_groups);
      if (rounded && coded > 0 && args.round.words == nullptr) {
        args.round = rounding(x, rows, args.in);
        device_->launch(Kernel::round_rows, {groups(segments_of(args.in) * rows, kRoundThreads / 32)},
                        args.round);
      }
      const Kernel kernels[][2] = {{Kernel::project_q4, Kernel::project_q8},
                                   {Kernel::project_rounded_q4, Kernel::project_rounded_q8}};
      device_->launch(kernels[rounded && coded > 0 ? 1 : 0][format == Format::kQ4 ? 0 : 1],
                      {args.coded_groups + plain_groups}, args);
      coded = plain = 0;
    };
    for (const Projection& part : parts) {
      const bool plainly = is_plain(part.w);
      if (plainly ? format != Format::kQ4 : part.w.format != format) continue;
      if (coded == kProjectCoded || plain == kProjectPlain) flush();
      if (plainly) {
        args.plain[plain] = weights_of(part.w);
        args.plain_y[plain] = part.y.address();
        args.first_plain[plain + 1] = args.first_plain[plain] + static_cast<u32>(part.w.out);
        ++plain;
      } else {
        args.coded[coded] = weights_of(part.w);
        args.coded_y[coded] = part.y.address();
        args.first_tile[coded + 1] = args.first_tile[coded] + groups(part.w.out, kTileRows);
        ++coded;
      }
    }
    flush();
  }
}

void GpuBackend::linear_many(std::span<const Projection> parts, Dev<const float> x, std::int64_t rows) {
  std::vector<Projection> together;
  Prepared columns{};  // once for all parts
  for (const Projection& part : parts) {
    if (rows >= kGemmLeastRows && part.w.out > 0 &&
        gemm_kernel(matvec_kernel(part.w), false) != Kernel::kCount) {
      if (columns.words == nullptr) columns = prepare_rows(x, rows, part.w.in);
      gemm(part.w, columns, rows, part.y, false, 1);
      continue;
    }
    const bool fits = is_plain(part.w) || (has_blocks(part.w) && is_short(part.w, 4) &&
                                           (part.w.format == Format::kQ4 || part.w.format == Format::kQ8));
    if (rows <= kStepRows && fits) {
      together.push_back(part);
    } else {
      linear(part.w, x, rows, part.y);
    }
  }
  if (!together.empty() && rows > 0) project(together, x, rows, false, 1);
}

void GpuBackend::hyper_read(WideShape shape, Dev<const float> out, Dev<const float> out_gate, Dev<float> wide,
                            const HyperRead& read) {
  const bool q4 = read.down.format == Format::kQ4;
  const auto segments = segments_of(read.up.in);
  const bool fused = shape.rows > 0 && shape.rows <= kHyperFusedRows && shape.streams == kHyperStreams &&
                     shape.width % kBlock == 0 && shape.width <= std::int64_t{kHyperWidth} &&
                     (q4 || read.down.format == Format::kQ8) && read.up.format == read.down.format &&
                     has_blocks(read.down) && is_short(read.down, 4) && has_blocks(read.up) &&
                     is_short(read.up, 1) && !is_plain(read.down) && !is_plain(read.up) &&
                     segments <= kHyperUpSegments && shape.rows * read.up.in <= std::int64_t{kHyperLow} &&
                     (read.inject.out == 0 || (read.inject.out == kHyperStreams && is_plain(read.inject)));
  if (!fused) return Backend::hyper_read(shape, out, out_gate, wide, read);
  HyperArgs args{};
  bool injects = out && out_gate;
  if (shape.rows >= kHyperNormedRows) {
    norm_prepare(shape, out, out_gate, wide, read.norm, read.eps, read.normed, nullptr);
    args.normed = read.normed.address();
    injects = false;
  }
  args.wide = wide.address();
  args.out = injects ? out.address() : nullptr;
  args.out_gate = injects ? out_gate.address() : nullptr;
  args.norm = read.norm.address();
  args.down = weights_of(read.down);
  args.up = weights_of(read.up);
  args.inject = weights_of(read.inject);
  const std::int64_t spans = (read.down.in + kHyperSpan - 1) / kHyperSpan;
  const std::int64_t sums = spans * shape.rows * read.down.out;
  const std::int64_t gates = spans * shape.rows * kHyperStreams;
  const Dev<float> workspace = hyper_sums_.get<float>(*this, sums + gates + kHyperRows * kHyperStreams);
  args.low = workspace.address();
  args.gates = (workspace + sums).address();
  args.scale = (workspace + sums + gates).address();
  args.spans = static_cast<u32>(spans);
  args.inject_gate = read.inject_gate.address();
  args.mixed = read.mixed.address();
  args.width = shape.width;
  args.rows = static_cast<u32>(shape.rows);
  args.div = static_cast<float>(shape.streams);
  args.eps = read.eps;
  device_->launch(q4 ? Kernel::hyper_down_q4 : Kernel::hyper_down_q8,
                  {groups(read.down.out, kTileRows) + (read.inject.out > 0 ? 1U : 0U), args.spans}, args);
  device_->launch(q4 ? Kernel::hyper_up_q4 : Kernel::hyper_up_q8, {groups(shape.width, kTileRows)}, args);
}

void GpuBackend::linear(const Matrix& w, Dev<const float> x, std::int64_t rows, Dev<float> y) {
  matvec(w, x, rows, y, false, 1);
}

void GpuBackend::linear_silu(const Matrix& w, Dev<const float> x, std::int64_t rows, float div,
                             Dev<float> y) {
  matvec(w, x, rows, y, true, div);
}

}  // namespace sluice::backend

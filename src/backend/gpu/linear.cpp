// Projections, and rows of a table.
#include <algorithm>

#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/weights_of.h"

namespace sluice::backend {

using gpu::Kernel;
using namespace kernels;  // NOLINT: names of this layer's own kernels

namespace {

/// A matrix with so few outputs costs nothing to compute finely, and gates are worth it.
constexpr std::int64_t kFineOutputs = 64;

/// Whether the matrix units can take it: whole blocks of 64 inputs, one scale for each or for several.
bool has_blocks(const Matrix& w) {
  if (w.in % kBlock != 0 || w.format == Format::kF32) return false;
  return !is_quantised(w.format) || w.group % kBlock == 0;
}

Kernel matvec_kernel(const Matrix& w) {
  if (!has_blocks(w)) return Kernel::matvec_any;
  const bool fine = w.out <= kFineOutputs;
  switch (w.format) {
    case Format::kBf16:
      return Kernel::matvec_bf16;
    case Format::kQ4:
      return fine ? Kernel::matvec_q4_fine : Kernel::matvec_q4;
    case Format::kQ8:
      return fine ? Kernel::matvec_q8_fine : Kernel::matvec_q8;
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
Kernel gemm_kernel(Kernel matvec) {
  switch (matvec) {
    case Kernel::matvec_q4:
      return Kernel::gemm_q4;
    case Kernel::matvec_q8:
      return Kernel::gemm_q8;
    case Kernel::matvec_q3:
      return Kernel::gemm_q3;
    case Kernel::matvec_q2:
      return Kernel::gemm_q2;
    default:
      return Kernel::kCount;
  }
}

/// From so many rows on reading the weights once pays for rounding the columns beforehand.
constexpr std::int64_t kGemmLeastRows = 32;

}  // namespace

Weights weights_of(const Matrix& w) {
  return {reinterpret_cast<const u8*>(w.data.address()),
          w.scales.address(),
          w.biases.address(),
          w.out,
          w.in,
          w.row_bytes(),
          static_cast<i32>(w.format),
          w.group};
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

void GpuBackend::matvec(const Matrix& w, Dev<const float> x, std::int64_t rows, Dev<float> y, bool silu,
                        float div) {
  if (rows == 0 || w.out == 0) return;
  const Kernel kernel = matvec_kernel(w);
  if (const Kernel gemm = gemm_kernel(kernel); rows >= kGemmLeastRows && gemm != Kernel::kCount) {
    const Prepared columns = prepare_columns(x, rows, w.in);
    device_->launch(gemm, {groups(w.out, kGemmRows), groups(rows, kGemmColumns)},
                    GemmArgs{weights_of(w), columns, y.address(), rows, silu ? 1 : 0, div});
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

void GpuBackend::linear(const Matrix& w, Dev<const float> x, std::int64_t rows, Dev<float> y) {
  matvec(w, x, rows, y, false, 1);
}

void GpuBackend::linear_silu(const Matrix& w, Dev<const float> x, std::int64_t rows, float div,
                             Dev<float> y) {
  matvec(w, x, rows, y, true, div);
}

}  // namespace sluice::backend

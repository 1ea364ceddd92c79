#include "store/fp8.h"

#include <array>
#include <string>
#include <vector>

#include "store/values.h"

namespace sluice::store {
namespace {

constexpr std::int64_t kTile = 128;

std::string scale_name(std::string_view name) {
  return std::string(name) + ".weight_scale_inv";
}

std::int64_t tiles(std::int64_t n) {
  return (n + kTile - 1) / kTile;
}

}  // namespace

bool is_fp8_matrix(const TensorIndex& index, std::string_view name) {
  return index.find(scale_name(name)) != nullptr;
}

Result<MatrixRef> locate_fp8_matrix(const TensorIndex& index, std::string_view name,
                                    std::span<const std::int64_t> shape) {
  MatrixRef matrix;
  matrix.format = spec::Format::kF32;
  matrix.in = shape[1];
  SLUICE_ASSIGN(matrix.weight, index.need(name, shape));
  if (matrix.weight.info->dtype != Dtype::kF8E4M3) {
    return matrix.weight.wrong(dtype_name(matrix.weight.info->dtype), "F8_E4M3, as it has weight_scale_inv");
  }
  SLUICE_TRY(matrix.weight.need_shape(shape));
  const std::array<std::int64_t, 2> sides = {tiles(shape[0]), tiles(shape[1])};
  SLUICE_ASSIGN(matrix.scales, index.need(scale_name(name), sides));
  SLUICE_TRY(need_float(matrix.scales));
  SLUICE_TRY(matrix.scales.need_shape(sides));
  return matrix;
}

Result<void> read_fp8_matrix(const MatrixRef& matrix, std::span<float> out) {
  std::vector<float> scales(static_cast<std::size_t>(matrix.scales.info->elements()));
  SLUICE_TRY(read_floats(matrix.scales, 0, scales));
  SLUICE_TRY(read_floats(matrix.weight, 0, out));
  const auto in = static_cast<std::size_t>(matrix.in);
  const auto per_row = static_cast<std::size_t>(tiles(matrix.in));
  for (std::size_t i = 0; i < out.size(); ++i) {
    out[i] *= scales[i / in / kTile * per_row + i % in / kTile];
  }
  return {};
}

}  // namespace sluice::store

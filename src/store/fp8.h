// The released FP8 form: e4m3 values with one scale for each tile of 128 x 128 (model.md 2.2).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "base/result.h"
#include "store/matrix.h"

namespace sluice::store {

/// Whether `name` is stored as FP8 with tile scales.
bool is_fp8_matrix(const TensorIndex& index, std::string_view name);

/// Finds an FP8 matrix [out, in] and its `weight_scale_inv`, which is kept in MatrixRef::scales; the format
/// is kF32, which holds every product exactly.
Result<MatrixRef> locate_fp8_matrix(const TensorIndex& index, std::string_view name,
                                    std::span<const std::int64_t> shape);

/// All values of such a matrix: code x the scale of its tile.
Result<void> read_fp8_matrix(const MatrixRef& matrix, std::span<float> out);

}  // namespace sluice::store

// A weight matrix in its file: plain, or codes with scales and biases (model.md 2.4).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "spec/config.h"
#include "spec/formats.h"
#include "store/source.h"
#include "store/tensor_index.h"

namespace sluice::store {

/// A located and checked matrix [..., out, in]; leading dimensions are stacked experts.
struct MatrixRef {
  spec::Format format = spec::Format::kBf16;  // F16 sources are read as kF32
  int group = 64;
  std::int64_t in = 0;
  TensorRef weight;
  TensorRef scales, biases;  // quantised formats only

  /// Bytes of one row of codes, as stored in the file.
  [[nodiscard]] std::uint64_t row_bytes() const;
  [[nodiscard]] std::int64_t groups() const { return in / group; }
  /// Bytes of all its tensors in the files.
  [[nodiscard]] std::uint64_t file_bytes() const;
};

/// Finds `name` and checks presence, dtypes and shapes. A matrix is quantised exactly when it has `.scales`;
/// how, `quantization` (with canonical names) says.
Result<MatrixRef> locate_matrix(const TensorIndex& index,
                                const std::optional<spec::QuantizationConfig>& quantization,
                                std::string_view name, std::span<const std::int64_t> shape);

/// Reads `rows` rows of a two-dimensional matrix from row `first` on.
Result<DenseTensor> read_matrix(const MatrixRef& matrix, std::string_view name, std::int64_t first,
                                std::int64_t rows);

/// Where the parts of a quantised tensor lie in its buffer, and how large that is.
struct TensorParts {
  std::size_t codes = 0;  // bytes of each part
  std::size_t scales = 0;
  std::size_t scales_offset = 0, biases_offset = 0;
  std::size_t bytes = 0;
};
TensorParts tensor_parts(spec::Format format, int group, std::int64_t rows, std::int64_t in);

/// The same overrides under canonical names, as configs use those of the file or of the release.
std::optional<spec::QuantizationConfig> canonical_quantization(
    const std::optional<spec::QuantizationConfig>& quantization);

}  // namespace sluice::store

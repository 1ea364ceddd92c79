// Routed experts of a checkpoint, assembled into records by positioned reads.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "spec/config.h"
#include "spec/formats.h"
#include "store/matrix.h"
#include "store/tensor_index.h"

namespace sluice::store {

/// Reads records whatever way the experts are stored: fused `experts.gate_up_proj`, one tensor an expert, or
/// stacked `switch_mlp`; BF16, F16, F32, MLX 4 and 8 bits, or FP8 with a scale for each 128x128 tile, whose
/// values come as float32. Valid as long as the index.
class ExpertRecords {
 public:
  /// Locates and checks the experts of all record layers; they must be of one format.
  static Result<ExpertRecords> open(const TensorIndex& index,
                                    const std::optional<spec::QuantizationConfig>& quantization,
                                    const spec::ModelConfig& config, bool with_mtp);

  [[nodiscard]] const spec::RecordLayout& layout() const { return layout_; }
  [[nodiscard]] bool is_fp8() const { return fp8_; }

  /// The files that hold one record.
  [[nodiscard]] std::vector<const SafetensorsFile*> files_of(std::int64_t layer, std::int64_t expert) const;

  /// WeightSource::read_record.
  Result<void> read(std::int64_t layer, std::int64_t expert, std::span<std::byte> record) const;

 private:
  /// One of an expert's three matrices, of every expert of a layer: in one stacked tensor, or one tensor
  /// each.
  struct Matrix {
    std::vector<MatrixRef> tensors;  // 1 (stacked) or one an expert
    std::int64_t first_row = 0;      // of expert 0 in a stacked tensor
    std::int64_t row_stride = 0;     // rows from one expert to the next; 0: one tensor an expert
  };
  struct Layer {
    std::array<Matrix, 3> matrices;  // gate, up, down
  };

  Result<Layer> locate(const TensorIndex& index, const std::optional<spec::QuantizationConfig>& quantization,
                       const std::string& prefix) const;
  Result<void> locate_single(const TensorIndex& index,
                             const std::optional<spec::QuantizationConfig>& quantization,
                             const std::string& prefix, Layer& layer) const;
  Result<void> take_format(const Layer& layer, const std::string& prefix);
  Result<void> read_matrix(const Matrix& matrix, int which, std::int64_t expert,
                           std::span<std::byte> record) const;
  [[nodiscard]] std::int64_t rows_of(int which) const;
  [[nodiscard]] std::int64_t columns_of(int which) const;

  spec::RecordLayout layout_;
  bool fp8_ = false;
  bool known_ = false;  // layout_.format is decided
  std::int64_t experts_ = 0;
  std::vector<Layer> layers_;
};

}  // namespace sluice::store

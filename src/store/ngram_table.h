// The n-gram table of one PLE layer: rows numbered over all its shards, dequantised as they are read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "spec/config.h"
#include "spec/ngram_hash.h"
#include "store/kept_table.h"
#include "store/matrix.h"
#include "store/tensor_index.h"

namespace sluice::store {

/// BF16, F16, F32, MLX 4 and 8 bits, or FP8 with one scale. Thread-safe once open. Valid as long as the
/// index.
class NgramTable {
 public:
  /// Locates the shards (`shard_N`, `shards.N`, or the table whole) and checks them and the hash constants:
  /// the file's where it has them, else those derived from the config.
  static Result<NgramTable> open(const TensorIndex& index,
                                 const std::optional<spec::QuantizationConfig>& quantization,
                                 const spec::ModelConfig& config, std::int64_t layer,
                                 std::uint64_t keep_below = kKeepNgramBelow);

  /// Has read_row go past the page cache, to the files as they lie in the file system.
  Result<void> open_direct();

  [[nodiscard]] const spec::NgramHash& hash() const { return hash_; }
  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] bool is_kept() const { return bytes_ <= keep_below_; }
  /// How read_range gives rows: F16, F32 and FP8 tables as float32.
  [[nodiscard]] spec::NgramLayout layout() const;

  /// WeightSource::read_ngram_rows.
  Result<void> read(std::span<const std::int64_t> rows, std::span<float> out) const;
  /// WeightSource::read_ngram_range.
  Result<void> read_range(std::int64_t first, std::span<std::byte> out) const;
  /// One row in the form of layout(), for lookups in tables that are not kept: see open_direct.
  Result<void> read_row(std::int64_t row, std::span<std::byte> out) const;
  /// The files that hold rows first .. first + rows - 1.
  [[nodiscard]] std::vector<const SafetensorsFile*> files_of(std::int64_t first, std::int64_t rows) const;

 private:
  struct Part {
    MatrixRef matrix;
    std::int64_t first_row = 0;
    std::int64_t rows = 0;
  };
  Result<void> add(const TensorIndex& index, const std::optional<spec::QuantizationConfig>& quantization,
                   const std::string& name, const TensorRef* scale);
  Result<void> find_hash(const TensorIndex& index, const spec::ModelConfig& config, std::int64_t layer);
  [[nodiscard]] std::size_t part_of(std::int64_t row) const;
  Result<void> read_part(const MatrixRef& matrix, std::int64_t first, std::int64_t rows,
                         std::byte* out) const;
  Result<std::span<const std::byte>> kept() const;

  std::vector<Part> parts_;
  std::vector<MatrixRef> direct_;  // of the parts, in files that are read past the page cache; or none
  std::vector<std::shared_ptr<const SafetensorsFile>> direct_files_;
  spec::NgramHash hash_;
  std::int64_t columns_ = 0;
  std::int64_t rows_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t keep_below_ = 0;
  float fp8_scale_ = 1;
  std::shared_ptr<KeptTable> kept_ = std::make_shared<KeptTable>();
};

}  // namespace sluice::store

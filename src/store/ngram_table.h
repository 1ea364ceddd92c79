// The n-gram table of one PLE layer: rows numbered over all its shards, dequantised as they are read.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "spec/config.h"
#include "spec/ngram_hash.h"
#include "store/matrix.h"
#include "store/tensor_index.h"

namespace sluice::store {

/// BF16, F16, F32, MLX 4 and 8 bits, or FP8 with one scale. Valid as long as the index.
class NgramTable {
 public:
  /// Tables up to this size stay in memory, so that a small model's decoding makes no system calls for them.
  static constexpr std::uint64_t kKeepBelow = std::uint64_t{64} << 20;

  /// Locates the shards (`shard_N`, `shards.N`, or the table whole) and checks them and the hash constants:
  /// the file's where it has them, else those derived from the config.
  static Result<NgramTable> open(const TensorIndex& index,
                                 const std::optional<spec::QuantizationConfig>& quantization,
                                 const spec::ModelConfig& config, std::int64_t layer,
                                 std::uint64_t keep_below = kKeepBelow);

  [[nodiscard]] const spec::NgramHash& hash() const { return hash_; }
  [[nodiscard]] std::int64_t rows() const { return rows_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] bool is_in_memory() const { return !parts_.empty() && !parts_.front().codes.empty(); }

  /// WeightSource::read_ngram_rows.
  Result<void> read(std::span<const std::int64_t> rows, std::span<float> out) const;

 private:
  struct Part {
    MatrixRef matrix;
    std::int64_t first_row = 0;
    std::int64_t rows = 0;
    // The shard's tensors, when the table is kept in memory.
    std::vector<std::byte> codes, scales, biases;
  };

  Result<void> add(const TensorIndex& index, const std::optional<spec::QuantizationConfig>& quantization,
                   const std::string& name, const TensorRef* scale);
  Result<void> find_hash(const TensorIndex& index, const spec::ModelConfig& config, std::int64_t layer);
  Result<void> keep();
  Result<void> read_row(const Part& part, std::int64_t row, std::span<std::byte> buffer,
                        std::span<float> out) const;

  std::vector<Part> parts_;
  spec::NgramHash hash_;
  std::int64_t columns_ = 0;
  std::int64_t rows_ = 0;
  std::uint64_t bytes_ = 0;
  float fp8_scale_ = 1;
};

}  // namespace sluice::store

// Where a model's weights come from, whatever form they are stored in: names are canonical, norms are
// effective multipliers, experts are records, n-gram rows are numbered over the whole table.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/buffer.h"
#include "base/json.h"
#include "base/result.h"
#include "spec/config.h"
#include "spec/formats.h"
#include "spec/ngram_hash.h"

namespace sluice::store {

/// A dense tensor in host memory. Matrices keep their stored precision; vectors (norms, A_log, dt_bias,
/// convolution taps) are float32. For quantised formats data, scales and biases lie in `buffer`, each
/// aligned to 64 bytes, at the given offsets.
struct DenseTensor {
  std::string name;  // canonical
  spec::Format format = spec::Format::kF32;
  int group = 64;
  std::vector<std::int64_t> shape;  // [out, in], or [n]; convolutions [channels, kernel]
  AlignedBuffer buffer;
  std::size_t scales_offset = 0;
  std::size_t biases_offset = 0;
};

/// A file of the model, for `inspect`.
struct SourceFile {
  std::string name;
  std::uint64_t bytes = 0;
};

/// Parameter counts by part, for `inspect`.
struct ParameterCounts {
  std::uint64_t experts = 0, ngram = 0, mtp = 0, delta_net = 0, attention = 0, hyper = 0, embed = 0, head = 0,
                shared_experts = 0, routers = 0, ple = 0, vision = 0;
  [[nodiscard]] std::uint64_t total() const;
};

class WeightSource {
 public:
  virtual ~WeightSource() = default;

  [[nodiscard]] virtual const spec::ModelConfig& config() const = 0;
  [[nodiscard]] virtual const std::filesystem::path& folder() const = 0;

  /// "bf16", "mlx-4bit": the form of the source, for people.
  [[nodiscard]] virtual std::string form() const = 0;
  [[nodiscard]] virtual std::vector<SourceFile> files() const = 0;
  [[nodiscard]] virtual ParameterCounts parameters() const = 0;
  /// What an optional part of the model lacks in these files (an MTP head the config announces, vision, ...).
  [[nodiscard]] virtual std::vector<std::string> missing() const = 0;

  /// Whether the files carry the MTP head.
  [[nodiscard]] virtual bool has_mtp() const = 0;

  /// Reads a dense tensor by canonical name: the released name without `model.language_model.` and without a
  /// final `.weight`: "embed_tokens", "lm_head", "layers.3.self_attn.q_proj", "mtp.layers.0.mlp.gate",
  /// "layers.0.linear_attn.A_log". Norm weights come as effective multipliers in float32.
  /// Errors: missing tensor, wrong dtype or shape, with file, found and needed.
  virtual Result<DenseTensor> read_dense(std::string_view name) const = 0;
  /// Bytes of the buffer that read_dense(name) gives, for plans. A source that knows them without reading the
  /// tensor says so.
  virtual Result<std::uint64_t> dense_bytes(std::string_view name) const {
    SLUICE_ASSIGN(const DenseTensor tensor, read_dense(name));
    return std::uint64_t{tensor.buffer.size()};
  }

  /// Format of the routed experts' records; the same for every layer.
  [[nodiscard]] virtual spec::RecordLayout record_layout() const = 0;
  /// Fills `record` (record_layout().bytes()) with expert `expert` of record layer `layer`: the trunk's
  /// layers, then the MTP layer. Thread-safe.
  virtual Result<void> read_record(std::int64_t layer, std::int64_t expert,
                                   std::span<std::byte> record) const = 0;

  /// Hash constants of PLE layer `layer` (0-based trunk layer).
  virtual Result<spec::NgramHash> ngram_hash(std::int64_t layer) const = 0;
  /// Values of table rows, dequantised: out [rows.size()][ple.head_dim()]. Row numbers must be inside the
  /// table. Thread-safe.
  virtual Result<void> read_ngram_rows(std::int64_t layer, std::span<const std::int64_t> rows,
                                       std::span<float> out) const = 0;
  /// Bytes of the whole table of one layer as stored.
  [[nodiscard]] virtual std::uint64_t ngram_bytes(std::int64_t layer) const = 0;
};

/// Opens a checkpoint folder: config.json and *.safetensors, single or sharded with an index; the released
/// BF16 form or MLX affine quantisation. Every tensor the model needs is checked for presence, dtype and
/// shape before this returns. The folder is only read.
Result<std::unique_ptr<WeightSource>> open_checkpoint(const std::filesystem::path& folder);

}  // namespace sluice::store

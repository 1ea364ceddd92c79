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
#include "store/dense_policy.h"
#include "store/tensor_index.h"

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

/// How rows of an n-gram table are read: in blocks, each with some whole rows from its start on.
struct NgramReads {
  std::int64_t block_rows = 1;   // of one block: row r is number r % block_rows of block r / block_rows
  std::int64_t block_bytes = 0;  // that reading one gives
  std::uint64_t kept_bytes = 0;  // of a table that stays in memory from the first lookup on; else 0
};

/// A file that holds weights of the model.
struct SourceFile {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint64_t header_checksum = 0;  // safetensors: of the length and the header
  std::int64_t modified = 0;          // nanoseconds since the epoch; 0: not known
};

/// Parameter counts by part, for `inspect`.
struct ParameterCounts {
  std::uint64_t experts = 0, ngram = 0, mtp = 0, delta_net = 0, attention = 0, hyper = 0, embed = 0, head = 0,
                shared_experts = 0, routers = 0, ple = 0, vision = 0;
  [[nodiscard]] std::uint64_t total() const;
};

/// What is known of a model's weights before any of them is read: their names follow from the config, their
/// number formats are these.
class SourceForm {
 public:
  virtual ~SourceForm() = default;

  [[nodiscard]] virtual const spec::ModelConfig& config() const = 0;
  /// What config() was read from.
  [[nodiscard]] virtual const Json& config_json() const = 0;
  [[nodiscard]] virtual const std::filesystem::path& folder() const = 0;

  /// "bf16", "mlx-4bit": the form of the source, for people.
  [[nodiscard]] virtual std::string form() const = 0;
  [[nodiscard]] virtual std::vector<SourceFile> files() const = 0;
  /// Bytes of the packed store that this is; absent: it is none.
  [[nodiscard]] virtual std::optional<std::uint64_t> packed_bytes() const { return std::nullopt; }
  /// What an optional part of the model lacks in these files (an MTP head the config announces, vision, ...).
  [[nodiscard]] virtual std::vector<std::string> missing() const = 0;

  /// Whether the files carry the MTP head.
  [[nodiscard]] virtual bool has_mtp() const = 0;

  /// The format a matrix is stored in.
  virtual Result<DenseFormat> dense_format(std::string_view name) const = 0;

  /// The precisions the routed experts' records are stored in, best first; the same for every layer.
  [[nodiscard]] virtual const std::vector<spec::RecordLayout>& record_layouts() const = 0;
  /// The best of them.
  [[nodiscard]] const spec::RecordLayout& record_layout() const { return record_layouts().front(); }
  /// How the records of a precision came about, as a manifest says it.
  [[nodiscard]] virtual std::string record_method(std::size_t /*tier*/) const { return "source"; }

  /// Hash constants of PLE layer `layer` (0-based trunk layer).
  virtual Result<spec::NgramHash> ngram_hash(std::int64_t layer) const = 0;
  /// How read_ngram_range gives rows.
  virtual Result<spec::NgramLayout> ngram_layout(std::int64_t layer) const = 0;
  /// How read_ngram_block gives them; what it is of a table without pages, or of a layer without a table.
  [[nodiscard]] virtual NgramReads ngram_reads(std::int64_t layer) const {
    const auto layout = ngram_layout(layer);
    return {1, layout.ok() ? layout->row_bytes() : 0, 0};
  }
  /// Bytes of the whole table of one layer as stored.
  [[nodiscard]] virtual std::uint64_t ngram_bytes(std::int64_t layer) const = 0;
};

class WeightSource : public SourceForm {
 public:
  [[nodiscard]] virtual ParameterCounts parameters() const = 0;

  /// Reads a dense tensor by canonical name: the released name without `model.language_model.` and without a
  /// final `.weight`: "embed_tokens", "lm_head", "layers.3.self_attn.q_proj", "mtp.layers.0.mlp.gate",
  /// "layers.0.linear_attn.A_log". Norm weights come as effective multipliers in float32.
  /// Errors: missing tensor, wrong dtype or shape, with file, found and needed.
  virtual Result<DenseTensor> read_dense(std::string_view name) const = 0;
  /// Some output rows of a matrix, as a tensor of its own: [rows, in].
  virtual Result<DenseTensor> read_dense_rows(std::string_view name, std::int64_t first,
                                              std::int64_t rows) const = 0;

  /// Fills `record` (the layout's bytes()) with expert `expert` of record layer `layer`, in the precision
  /// number `tier` of record_layouts(): the trunk's layers, then the MTP layer. Thread-safe.
  virtual Result<void> read_record(std::size_t tier, std::int64_t layer, std::int64_t expert,
                                   std::span<std::byte> record) const = 0;

  /// Fills `slot` (slot_bytes of the layout, aligned to 4096) with record number layer * experts + expert and
  /// padding. Thread-safe; the way for records that are read while computing.
  virtual Result<void> read_slot(std::size_t tier, std::int64_t id, std::span<std::byte> slot) const {
    const auto bytes = static_cast<std::size_t>(record_layouts()[tier].bytes());
    return read_record(tier, id / config().experts, id % config().experts, slot.first(bytes));
  }

  /// Where a slot's bytes can be read as they are, past the page cache, by whoever reads descriptors; none:
  /// only read_slot() gives it. Afterwards check_slot() tells whether they are right.
  struct SlotPlace {
    int fd = -1;
    std::uint64_t offset = 0;
  };
  [[nodiscard]] virtual std::optional<SlotPlace> slot_place(std::size_t /*tier*/, std::int64_t /*id*/) const {
    return std::nullopt;
  }
  virtual Result<void> check_slot(std::size_t /*tier*/, std::int64_t /*id*/,
                                  std::span<const std::byte> /*slot*/) const {
    return {};
  }

  /// Values of table rows, dequantised: out [rows.size()][ple.head_dim()]. Row numbers must be inside the
  /// table. Thread-safe.
  virtual Result<void> read_ngram_rows(std::int64_t layer, std::span<const std::int64_t> rows,
                                       std::span<float> out) const = 0;
  /// Fills `block` (block_bytes, aligned to 4096) from the drive, checked where the form has checksums; its
  /// rows begin at its start, one after another as stored. Thread-safe.
  virtual Result<void> read_ngram_block(std::int64_t layer, std::int64_t number,
                                        std::span<std::byte> block) const {
    return read_ngram_range(layer, number, block);
  }
  /// Stored rows from `first` on, as many as `out` holds, one after another. Thread-safe.
  virtual Result<void> read_ngram_range(std::int64_t layer, std::int64_t first,
                                        std::span<std::byte> out) const = 0;

  /// Which of files() a part of the model lies in, so that a reader can go through a checkpoint file by file.
  [[nodiscard]] virtual std::vector<std::size_t> files_of_dense(std::string_view name) const = 0;
  [[nodiscard]] virtual std::vector<std::size_t> files_of_record(std::int64_t layer,
                                                                 std::int64_t expert) const = 0;
  [[nodiscard]] virtual std::vector<std::size_t> files_of_ngram(std::int64_t layer, std::int64_t first,
                                                                std::int64_t rows) const = 0;
};

/// Opens a checkpoint folder: config.json and *.safetensors, single or sharded with an index; the released
/// BF16 form or MLX affine quantisation. Every tensor the model needs is checked for presence, dtype and
/// shape before this returns. The folder is only read.
/// `open_weights` opens weight files; without one they are opened where they lie.
Result<std::unique_ptr<WeightSource>> open_checkpoint(const std::filesystem::path& folder,
                                                      const FileOpener& open_weights = {});

/// Opens a packed store: the manifest is read and checked, every file's presence and size, the checksums of
/// records, and that the n-gram table is this model's. Payload is checked as it is read.
Result<std::unique_ptr<WeightSource>> open_store(const std::filesystem::path& folder);

/// Whether a folder holds a packed store.
bool is_store(const std::filesystem::path& folder);

/// Opens what the folder holds: a packed store or a checkpoint.
Result<std::unique_ptr<WeightSource>> open_source(const std::filesystem::path& folder);

}  // namespace sluice::store

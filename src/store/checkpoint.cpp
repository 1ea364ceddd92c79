#include <algorithm>
#include <charconv>
#include <map>
#include <system_error>

#include "base/file.h"
#include "store/dense_table.h"
#include "store/expert_records.h"
#include "store/matrix.h"
#include "store/ngram_table.h"
#include "store/norms.h"
#include "store/parameters.h"
#include "store/source.h"
#include "store/values.h"

namespace sluice::store {
namespace {

namespace fs = std::filesystem;

/// Convolution taps as any of the three stored shapes. [C, 1, K] and [C, K, 1] hold the same bytes in the
/// same order, so the check is all there is to do.
Result<void> need_conv_shape(const TensorRef& tensor, std::int64_t channels, std::int64_t kernel) {
  const std::vector<std::int64_t>& shape = tensor.info->shape;
  using Shape = std::vector<std::int64_t>;
  if (shape == Shape{channels, 1, kernel} || shape == Shape{channels, kernel, 1} ||
      shape == Shape{channels, kernel}) {
    return {};
  }
  return tensor.wrong(fmt::format("shape {}", shape_text(shape)),
                      fmt::format("[{}, 1, {}] or [{}, {}, 1]", channels, kernel, channels, kernel));
}

class Checkpoint final : public WeightSource {
 public:
  static Result<std::unique_ptr<Checkpoint>> open(const fs::path& folder, Json config_json,
                                                  spec::ModelConfig config, const FileOpener& open_weights);

  [[nodiscard]] const spec::ModelConfig& config() const override { return config_; }
  [[nodiscard]] const fs::path& folder() const override { return folder_; }
  [[nodiscard]] std::string form() const override;
  [[nodiscard]] std::vector<SourceFile> files() const override;
  [[nodiscard]] ParameterCounts parameters() const override { return counts_; }
  [[nodiscard]] std::vector<std::string> missing() const override;
  [[nodiscard]] bool has_mtp() const override { return has_mtp_; }
  [[nodiscard]] const Json& config_json() const override { return config_json_; }
  Result<DenseFormat> dense_format(std::string_view name) const override;
  Result<DenseTensor> read_dense(std::string_view name) const override;
  Result<DenseTensor> read_dense_rows(std::string_view name, std::int64_t first,
                                      std::int64_t rows) const override;
  [[nodiscard]] const std::vector<spec::RecordLayout>& record_layouts() const override { return layouts_; }
  Result<void> read_record(std::size_t tier, std::int64_t layer, std::int64_t expert,
                           std::span<std::byte> record) const override;
  Result<spec::NgramHash> ngram_hash(std::int64_t layer) const override;
  Result<void> read_ngram_rows(std::int64_t layer, std::span<const std::int64_t> rows,
                               std::span<float> out) const override;
  Result<spec::NgramLayout> ngram_layout(std::int64_t layer) const override;
  [[nodiscard]] NgramReads ngram_reads(std::int64_t layer) const override;
  Result<void> read_ngram_block(std::int64_t layer, std::int64_t number,
                                std::span<std::byte> block) const override;
  Result<void> read_ngram_range(std::int64_t layer, std::int64_t first,
                                std::span<std::byte> out) const override;
  [[nodiscard]] std::uint64_t ngram_bytes(std::int64_t layer) const override;
  [[nodiscard]] std::vector<std::size_t> files_of_dense(std::string_view name) const override;
  [[nodiscard]] std::vector<std::size_t> files_of_record(std::int64_t layer,
                                                         std::int64_t expert) const override;
  [[nodiscard]] std::vector<std::size_t> files_of_ngram(std::int64_t layer, std::int64_t first,
                                                        std::int64_t rows) const override;

 private:
  struct Dense {
    DenseInfo info;
    MatrixRef matrix;  // only its weight for anything but matrices
  };

  Result<void> locate_dense(std::span<const DenseInfo> infos);
  Result<void> check_surplus() const;
  Result<const Dense*> dense_of(std::string_view name) const;
  Result<const NgramTable*> table_of(std::int64_t layer) const;
  [[nodiscard]] std::vector<std::size_t> numbers_of(std::vector<const SafetensorsFile*> files) const;
  Result<DenseTensor> read_vector(const Dense& dense, std::string_view name) const;

  fs::path folder_;
  Json config_json_;
  spec::ModelConfig config_;
  std::optional<spec::QuantizationConfig> quantization_;  // with canonical names
  TensorIndex index_;
  std::map<std::string, Dense, std::less<>> dense_;
  NormConvention norms_;
  ExpertRecords experts_;
  std::vector<spec::RecordLayout> layouts_;  // one: a checkpoint has one precision
  std::map<std::int64_t, NgramTable> tables_;
  ParameterCounts counts_;
  bool has_mtp_ = false;
};

Result<std::unique_ptr<Checkpoint>> Checkpoint::open(const fs::path& folder, Json config_json,
                                                     spec::ModelConfig config,
                                                     const FileOpener& open_weights) {
  auto checkpoint = std::make_unique<Checkpoint>();
  Checkpoint& c = *checkpoint;
  c.folder_ = folder;
  c.config_json_ = std::move(config_json);
  c.config_ = std::move(config);
  c.quantization_ = canonical_quantization(c.config_.quantization);
  SLUICE_ASSIGN(c.index_, TensorIndex::open(folder, open_weights));
  // A head that is there must be whole; only one that is not there at all may be done without.
  c.has_mtp_ = c.config_.mtp_layers > 0 && c.index_.has_prefix("mtp.");
  const std::vector<DenseInfo> infos = dense_tensors(c.config_, c.has_mtp_);
  SLUICE_TRY(c.locate_dense(infos));
  SLUICE_TRY(c.check_surplus());
  SLUICE_ASSIGN(c.experts_, ExpertRecords::open(c.index_, c.quantization_, c.config_, c.has_mtp_));
  c.layouts_ = {c.experts_.layout()};
  SLUICE_ASSIGN(c.norms_, decide_norms(c.index_, infos));
  if (c.config_.ple) {
    for (const std::int64_t layer : c.config_.ple->layers) {
      SLUICE_ASSIGN(auto table, NgramTable::open(c.index_, c.quantization_, c.config_, layer));
      if (!table.is_kept() && !open_weights) SLUICE_TRY(table.open_direct());
      c.tables_.emplace(layer, std::move(table));
    }
  }
  c.counts_ = count_parameters(c.config_, infos, c.has_mtp_);
  for (const auto& [layer, table] : c.tables_) {
    c.counts_.ngram += static_cast<std::uint64_t>(table.rows() * c.config_.ple->head_dim());
  }
  for (const TensorRef& tensor : c.index_.vision()) c.counts_.vision += vision_parameters(*tensor.info);
  return checkpoint;
}

Result<void> Checkpoint::locate_dense(std::span<const DenseInfo> infos) {
  for (const DenseInfo& info : infos) {
    Dense dense{info, {}};
    if (info.kind == DenseKind::kMatrix) {
      SLUICE_ASSIGN(dense.matrix, locate_matrix(index_, quantization_, info.name, info.shape));
    } else {
      SLUICE_ASSIGN(dense.matrix.weight, index_.need(info.name, info.shape));
      SLUICE_TRY(need_float(dense.matrix.weight));
      SLUICE_TRY(info.kind == DenseKind::kConv
                     ? need_conv_shape(dense.matrix.weight, info.shape[0], info.shape[1])
                     : dense.matrix.weight.need_shape(info.shape));
    }
    dense_.emplace(info.name, std::move(dense));
  }
  return {};
}

/// Tensors of a part that the config leaves out mean that config and weights are of different models.
Result<void> Checkpoint::check_surplus() const {
  const std::string next = fmt::format("layers.{}.", config_.layer_count());
  for (auto it = index_.tensors().lower_bound("layers."); it != index_.tensors().end(); ++it) {
    const std::string& name = it->first;
    if (!name.starts_with("layers.")) break;
    if (name.starts_with(next)) {
      return it->second.wrong(
          "a tensor of a further layer",
          fmt::format("num_hidden_layers ({}) layers, as config.json says", config_.layer_count()));
    }
    if (!config_.indexer && name.find(".self_attn.indexer.") != std::string::npos) {
      return it->second.wrong("a tensor of an indexer", "none, as config.json has no indexer_ keys");
    }
    const std::size_t ple = name.find(".ple.");
    if (ple == std::string::npos) continue;
    std::int64_t layer = -1;
    std::from_chars(name.data() + 7, name.data() + ple, layer);
    if (!config_.is_ple_layer(layer)) {
      return it->second.wrong("a tensor of an n-gram embedding",
                              "none there, as ple_layer_ids in config.json says");
    }
  }
  return {};
}

std::string Checkpoint::form() const {
  if (experts_.is_fp8()) return "fp8";
  switch (experts_.layout().format) {
    case spec::Format::kF32:
      return "f32";
    case spec::Format::kBf16:
      return "bf16";
    default:
      return fmt::format("mlx-{}bit", spec::bits_of(experts_.layout().format));
  }
}

std::vector<SourceFile> Checkpoint::files() const {
  std::vector<SourceFile> files;
  for (const auto& file : index_.files()) {
    files.push_back({fs::path(file->file().name()).filename().string(), file->file().size(),
                     file->header_checksum(), file->file().modified()});
  }
  return files;
}

std::vector<std::string> Checkpoint::missing() const {
  std::vector<std::string> missing;
  if (config_.mtp_layers > 0 && !has_mtp_) missing.emplace_back("MTP head (no mtp.* tensors)");
  if (config_.has_vision && index_.vision().empty()) missing.emplace_back("vision tower");
  return missing;
}

Result<const Checkpoint::Dense*> Checkpoint::dense_of(std::string_view name) const {
  const bool tied = name == "lm_head" && config_.tie_embeddings;
  const auto it = dense_.find(tied ? std::string_view("embed_tokens") : name);
  if (it != dense_.end()) return &it->second;
  return make_error(ErrorCode::kNotFound, "{}: no dense tensor {} in this model{}", folder_.string(), name,
                    name.starts_with("mtp.") && !has_mtp_ ? " (the files have no MTP head)" : "");
}

Result<DenseFormat> Checkpoint::dense_format(std::string_view name) const {
  SLUICE_ASSIGN(const Dense* dense, dense_of(name));
  if (dense->info.kind != DenseKind::kMatrix) return DenseFormat{spec::Format::kF32, 64};
  return DenseFormat{dense->matrix.format, dense->matrix.group};
}

Result<DenseTensor> Checkpoint::read_dense(std::string_view name) const {
  SLUICE_ASSIGN(const Dense* dense, dense_of(name));
  if (dense->info.kind != DenseKind::kMatrix) return read_vector(*dense, name);
  return read_matrix(dense->matrix, name, 0, dense->info.shape.front());
}

Result<DenseTensor> Checkpoint::read_dense_rows(std::string_view name, std::int64_t first,
                                                std::int64_t rows) const {
  SLUICE_ASSIGN(const Dense* dense, dense_of(name));
  const auto& shape = dense->info.shape;
  if (dense->info.kind != DenseKind::kMatrix || first < 0 || rows < 1 || first > shape.front() - rows) {
    return make_error(ErrorCode::kInvalidArgument, "{}: rows {} to {} asked for, the tensor is {}", name,
                      first, first + rows - 1, shape_text(shape));
  }
  return read_matrix(dense->matrix, name, first, rows);
}

Result<DenseTensor> Checkpoint::read_vector(const Dense& dense, std::string_view name) const {
  DenseTensor tensor;
  tensor.name = name;
  tensor.shape = dense.info.shape;
  const auto count = static_cast<std::size_t>(dense.matrix.weight.info->elements());
  SLUICE_ASSIGN(tensor.buffer, AlignedBuffer::create(count * sizeof(float)));
  const std::span<float> values(tensor.buffer.as<float>(), count);
  SLUICE_TRY(read_floats(dense.matrix.weight, 0, values));
  // The one place where 1 + w is applied.
  if (dense.info.kind == DenseKind::kNorm && !norms_.is_folded(dense.info.name)) {
    for (float& value : values) value = 1.0F + value;
  }
  return tensor;
}

Result<const NgramTable*> Checkpoint::table_of(std::int64_t layer) const {
  const auto it = tables_.find(layer);
  if (it != tables_.end()) return &it->second;
  return make_error(ErrorCode::kInvalidArgument, "{}: layer {} has no n-gram embedding", folder_.string(),
                    layer);
}

Result<spec::NgramHash> Checkpoint::ngram_hash(std::int64_t layer) const {
  SLUICE_ASSIGN(const NgramTable* table, table_of(layer));
  return table->hash();
}

Result<void> Checkpoint::read_ngram_rows(std::int64_t layer, std::span<const std::int64_t> rows,
                                         std::span<float> out) const {
  SLUICE_ASSIGN(const NgramTable* table, table_of(layer));
  return table->read(rows, out);
}

Result<spec::NgramLayout> Checkpoint::ngram_layout(std::int64_t layer) const {
  SLUICE_ASSIGN(const NgramTable* table, table_of(layer));
  return table->layout();
}

NgramReads Checkpoint::ngram_reads(std::int64_t layer) const {
  const auto it = tables_.find(layer);
  if (it == tables_.end()) return {};
  const spec::NgramLayout layout = it->second.layout();
  const auto kept = static_cast<std::uint64_t>(it->second.is_kept() ? layout.rows * layout.row_bytes() : 0);
  return {1, layout.row_bytes(), kept};
}

Result<void> Checkpoint::read_ngram_block(std::int64_t layer, std::int64_t number,
                                          std::span<std::byte> block) const {
  SLUICE_ASSIGN(const NgramTable* table, table_of(layer));
  return table->read_row(number, block);
}

Result<void> Checkpoint::read_ngram_range(std::int64_t layer, std::int64_t first,
                                          std::span<std::byte> out) const {
  SLUICE_ASSIGN(const NgramTable* table, table_of(layer));
  return table->read_range(first, out);
}

Result<void> Checkpoint::read_record(std::size_t tier, std::int64_t layer, std::int64_t expert,
                                     std::span<std::byte> record) const {
  if (tier != 0) {
    return make_error(ErrorCode::kInvalidArgument, "{}: experts in precision {} asked for, it has one",
                      folder_.string(), tier);
  }
  return experts_.read(layer, expert, record);
}

std::vector<std::size_t> Checkpoint::numbers_of(std::vector<const SafetensorsFile*> files) const {
  std::vector<std::size_t> numbers;
  for (const SafetensorsFile* file : files) numbers.push_back(index_.file_number(*file));
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

std::vector<std::size_t> Checkpoint::files_of_dense(std::string_view name) const {
  const auto dense = dense_of(name);
  if (!dense.ok()) return {};
  std::vector<const SafetensorsFile*> files;
  const MatrixRef& matrix = dense.value()->matrix;
  for (const TensorRef& tensor : {matrix.weight, matrix.scales, matrix.biases}) {
    if (tensor.file != nullptr) files.push_back(tensor.file);
  }
  return numbers_of(std::move(files));
}

std::vector<std::size_t> Checkpoint::files_of_record(std::int64_t layer, std::int64_t expert) const {
  return numbers_of(experts_.files_of(layer, expert));
}

std::vector<std::size_t> Checkpoint::files_of_ngram(std::int64_t layer, std::int64_t first,
                                                    std::int64_t rows) const {
  const auto it = tables_.find(layer);
  return it == tables_.end() ? std::vector<std::size_t>{} : numbers_of(it->second.files_of(first, rows));
}

std::uint64_t Checkpoint::ngram_bytes(std::int64_t layer) const {
  const auto it = tables_.find(layer);
  return it == tables_.end() ? 0 : it->second.bytes();
}

Result<void> check_folder(const fs::path& folder) {
  std::error_code ec;
  const fs::file_status status = fs::status(folder, ec);
  if (!fs::exists(status)) {
    return make_error(ErrorCode::kNotFound, "{}: no such folder; a model folder needed", folder.string());
  }
  if (!fs::is_directory(status)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: not a folder; the folder with config.json and the weights needed",
                      folder.string());
  }
  if (!fs::exists(folder / "config.json", ec)) {
    const bool packed = fs::exists(folder / "manifest.json", ec);
    return make_error(ErrorCode::kNotFound, "{}: no config.json found; a model folder needed{}",
                      folder.string(), packed ? " (this looks like a packed store)" : "");
  }
  return {};
}

}  // namespace

Result<std::unique_ptr<WeightSource>> open_checkpoint(const fs::path& folder,
                                                      const FileOpener& open_weights) {
  constexpr std::uint64_t kMaxConfig = 1 << 20;
  SLUICE_TRY(check_folder(folder));
  const fs::path path = folder / "config.json";
  SLUICE_ASSIGN(const std::string text, read_text_file(path, kMaxConfig));
  SLUICE_ASSIGN(Json json, parse_json(text, path.string()));
  SLUICE_ASSIGN(spec::ModelConfig config, spec::parse_config(json, path.string()));
  SLUICE_ASSIGN(auto checkpoint, Checkpoint::open(folder, std::move(json), std::move(config), open_weights));
  return std::unique_ptr<WeightSource>(std::move(checkpoint));
}

}  // namespace sluice::store

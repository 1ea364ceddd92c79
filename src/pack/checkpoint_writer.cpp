#include "pack/checkpoint_writer.h"

#include <algorithm>
#include <array>
#include <functional>
#include <mutex>

#include "base/numbers.h"
#include "base/output_file.h"
#include "base/threads.h"
#include "base/work_together.h"
#include "quant/record.h"
#include "store/dense_table.h"
#include "store/matrix.h"
#include "store/safetensors.h"
#include "store/store_format.h"

namespace sluice::pack {
namespace {

namespace fs = std::filesystem;
using spec::Format;

constexpr std::int64_t kValuesAtOnce = std::int64_t{1} << 22;  // bounds the memory of a thread
constexpr std::array<const char*, 3> kMatrices = {"gate_proj", "up_proj", "down_proj"};

std::string file_name(const std::string& canonical) {
  if (canonical.starts_with("mtp.")) return canonical;
  return (canonical.starts_with("lm_head") ? "language_model." : "language_model.model.") + canonical;
}

Json format_json(Format format, int group) {
  if (!spec::is_quantised(format)) return false;
  return {{"group_size", group}, {"bits", spec::bits_of(format)}};
}

std::vector<std::byte> bytes_of(std::span<const std::int64_t> values) {
  const auto bytes = std::as_bytes(values);
  return {bytes.begin(), bytes.end()};
}

/// Tensors of a matrix: its numbers; codes, scales and biases where it is quantised.
struct Tensors {
  std::size_t first = 0;  // the weight; scales and biases follow it
  std::int64_t row_bytes = 0, side_bytes = 0;
};

class CheckpointWriter {
 public:
  CheckpointWriter(const store::WeightSource& source, const CheckpointOptions& options)
      : source_(source), options_(options) {}

  Result<void> plan();
  Result<CheckpointReport> write(const fs::path& folder);
  [[nodiscard]] std::uint64_t bytes() const { return total_; }
  void remove_files() const;

 private:
  using Work = std::function<Result<void>()>;

  Result<void> plan_dense(const store::DenseInfo& info);
  Result<void> plan_experts(std::int64_t layer);
  Result<void> plan_table(std::int64_t layer);
  std::size_t add(std::string name, store::Dtype dtype, std::vector<std::int64_t> shape);
  Tensors add_matrix(const std::string& name, std::vector<std::int64_t> shape, Format format, int group);
  void note_format(const std::string& module, Format format, int group);

  Result<void> write_rows(const std::string& name, const Tensors& to, std::int64_t first, std::int64_t rows);
  Result<void> write_vector(const std::string& name, std::size_t to);
  Result<void> write_record(std::int64_t layer, std::int64_t expert, const std::array<Tensors, 3>& to);
  Result<void> write_table(std::int64_t layer, std::int64_t first, std::int64_t rows, std::int64_t inside,
                           const Tensors& to);
  Result<void> put(std::size_t tensor, std::uint64_t offset, std::span<const std::byte> bytes);

  Result<void> open_shards(const fs::path& folder);
  Result<void> run_all();

  const store::WeightSource& source_;
  const CheckpointOptions& options_;
  Json config_;
  std::vector<store::TensorPlan> tensors_;
  std::vector<Work> work_;
  struct Place {
    std::size_t shard = 0, number = 0;
  };
  std::vector<Place> places_;
  std::vector<std::unique_ptr<store::SafetensorsWriter>> shards_;
  std::vector<fs::path> paths_;
  std::uint64_t total_ = 0, done_ = 0;
  std::mutex mutex_;  // done_ and callbacks
};

std::size_t CheckpointWriter::add(std::string name, store::Dtype dtype, std::vector<std::int64_t> shape) {
  tensors_.push_back({std::move(name), dtype, std::move(shape)});
  total_ += tensors_.back().bytes();
  return tensors_.size() - 1;
}

Tensors CheckpointWriter::add_matrix(const std::string& name, std::vector<std::int64_t> shape, Format format,
                                     int group) {
  const std::int64_t in = shape.back();
  if (!spec::is_quantised(format)) {
    return {add(name + ".weight", store::Dtype::kBf16, std::move(shape)), 2 * in, 0};
  }
  std::vector<std::int64_t> sides = shape;
  sides.back() = in / group;
  shape.back() = in * spec::bits_of(format) / 32;
  const Tensors tensors{add(name + ".weight", store::Dtype::kU32, std::move(shape)),
                        in * spec::bits_of(format) / 8, 2 * (in / group)};
  add(name + ".scales", store::Dtype::kBf16, sides);
  add(name + ".biases", store::Dtype::kBf16, std::move(sides));
  return tensors;
}

void CheckpointWriter::note_format(const std::string& module, Format format, int group) {
  const spec::RecordLayout& standard = source_.record_layout();
  if (format == standard.format && group == standard.geometry.group) return;
  config_["quantization"][module] = format_json(format, group);
}

Result<void> CheckpointWriter::plan() {
  const spec::RecordLayout& layout = source_.record_layout();
  if (layout.format != Format::kQ4 && layout.format != Format::kQ8) {
    return make_error(ErrorCode::kUnsupported, "{}: experts as {} found, 4 or 8 bits needed for a checkpoint",
                      source_.folder().string(), store::format_tag(layout.format));
  }
  config_ = source_.config_json();
  config_.erase("quantization_config");
  config_["quantization"] = {
      {"group_size", layout.geometry.group}, {"bits", spec::bits_of(layout.format)}, {"mode", "affine"}};
  const spec::ModelConfig& config = source_.config();
  for (const store::DenseInfo& info : store::dense_tensors(config, source_.has_mtp())) {
    SLUICE_TRY(plan_dense(info));
  }
  const std::int64_t layers = config.layer_count() + (source_.has_mtp() ? 1 : 0);
  for (std::int64_t layer = 0; layer < layers; ++layer) SLUICE_TRY(plan_experts(layer));
  if (!config.ple) return {};
  for (const std::int64_t layer : config.ple->layers) SLUICE_TRY(plan_table(layer));
  return {};
}

Result<void> CheckpointWriter::plan_dense(const store::DenseInfo& info) {
  std::string file = file_name(info.name);
  if (info.kind != store::DenseKind::kMatrix) {
    std::vector<std::int64_t> shape = info.shape;
    if (info.kind == store::DenseKind::kConv) shape.push_back(1);
    const bool plain = info.kind == store::DenseKind::kVector && !info.name.ends_with(".norm");
    const std::size_t to = add(plain ? file : file + ".weight", store::Dtype::kBf16, std::move(shape));
    work_.emplace_back([this, name = info.name, to] { return write_vector(name, to); });
    return {};
  }
  SLUICE_ASSIGN(const store::DenseFormat format, source_.dense_format(info.name));
  if (format.format == Format::kF32) {
    return make_error(ErrorCode::kUnsupported, "{}: tensor {} as f32 found, bf16 or quantised needed",
                      source_.folder().string(), info.name);
  }
  note_format(file, format.format, format.group);
  const Tensors to = add_matrix(file, info.shape, format.format, format.group);
  const std::int64_t at_once = std::max<std::int64_t>(kValuesAtOnce / info.shape[1], 1);
  for (std::int64_t first = 0; first < info.shape[0]; first += at_once) {
    const std::int64_t rows = std::min(at_once, info.shape[0] - first);
    work_.emplace_back(
        [this, name = info.name, to, first, rows] { return write_rows(name, to, first, rows); });
  }
  return {};
}

Result<void> CheckpointWriter::plan_experts(std::int64_t layer) {
  const spec::ModelConfig& config = source_.config();
  const spec::RecordLayout& layout = source_.record_layout();
  const std::string prefix =
      layer < config.layer_count() ? fmt::format("layers.{}.mlp.", layer) : std::string("mtp.layers.0.mlp.");
  std::array<Tensors, 3> to;
  for (std::size_t m = 0; m < to.size(); ++m) {
    const quant::MatrixShape shape = quant::record_matrix(layout, static_cast<int>(m));
    to[m] = add_matrix(file_name(prefix + "switch_mlp." + kMatrices[m]),
                       {config.experts, shape.rows, shape.in}, layout.format, layout.geometry.group);
  }
  for (std::int64_t expert = 0; expert < config.experts; ++expert) {
    work_.emplace_back([this, layer, expert, to] { return write_record(layer, expert, to); });
  }
  return {};
}

Result<void> CheckpointWriter::plan_table(std::int64_t layer) {
  const spec::PleConfig& ple = *source_.config().ple;
  SLUICE_ASSIGN(const spec::NgramLayout layout, source_.ngram_layout(layer));
  SLUICE_ASSIGN(const spec::NgramHash hash, source_.ngram_hash(layer));
  if (layout.format != Format::kQ4 && layout.format != Format::kQ8 && layout.format != Format::kBf16) {
    return make_error(ErrorCode::kUnsupported, "{}: n-gram rows as {} found, bf16 or 4 or 8 bits needed",
                      source_.folder().string(), store::format_tag(layout.format));
  }
  const std::string file = file_name(fmt::format("layers.{}.ple.ple_embedding.", layer));
  note_format(file + "ngram_embedding", layout.format, layout.group);
  const std::int64_t parts = std::clamp<std::int64_t>(ple.parts, 1, layout.rows);
  const std::int64_t at_once = std::max<std::int64_t>(kValuesAtOnce / layout.columns, 1);
  for (std::int64_t p = 0; p < parts; ++p) {
    const std::int64_t start = layout.rows * p / parts, end = layout.rows * (p + 1) / parts;
    const Tensors to = add_matrix(file + fmt::format("ngram_embedding.shards.{}", p),
                                  {end - start, layout.columns}, layout.format, layout.group);
    for (std::int64_t first = start; first < end; first += at_once) {
      const std::int64_t rows = std::min(at_once, end - first);
      work_.emplace_back([this, layer, first, rows, inside = first - start, to] {
        return write_table(layer, first, rows, inside, to);
      });
    }
  }
  const auto constant = [&](const char* name, const std::vector<std::int64_t>& values) {
    const std::size_t to = add(file + name, store::Dtype::kI64, {std::ssize(values)});
    work_.emplace_back([this, to, bytes = bytes_of(values)] { return put(to, 0, bytes); });
  };
  constant("layer_multipliers", hash.multipliers);
  constant("ngram_heads_vocab_sizes", hash.sizes);
  constant("ngram_heads_offsets", hash.offsets);
  return {};
}

Result<void> CheckpointWriter::put(std::size_t tensor, std::uint64_t offset,
                                   std::span<const std::byte> bytes) {
  const Place& place = places_[tensor];
  SLUICE_TRY(shards_[place.shard]->write(place.number, offset, bytes));
  const std::scoped_lock lock(mutex_);
  done_ += bytes.size();
  if (options_.on_progress) options_.on_progress(done_, total_);
  return {};
}

Result<void> CheckpointWriter::write_rows(const std::string& name, const Tensors& to, std::int64_t first,
                                          std::int64_t rows) {
  SLUICE_ASSIGN(const store::DenseTensor tensor, source_.read_dense_rows(name, first, rows));
  const auto bytes = tensor.buffer.bytes();
  const auto part = [&](std::size_t offset, std::int64_t row_bytes) {
    return bytes.subspan(offset, static_cast<std::size_t>(rows * row_bytes));
  };
  SLUICE_TRY(put(to.first, static_cast<std::uint64_t>(first * to.row_bytes), part(0, to.row_bytes)));
  if (to.side_bytes == 0) return {};
  const auto side = static_cast<std::uint64_t>(first * to.side_bytes);
  SLUICE_TRY(put(to.first + 1, side, part(tensor.scales_offset, to.side_bytes)));
  return put(to.first + 2, side, part(tensor.biases_offset, to.side_bytes));
}

Result<void> CheckpointWriter::write_vector(const std::string& name, std::size_t to) {
  SLUICE_ASSIGN(const store::DenseTensor tensor, source_.read_dense(name));
  const std::size_t count = tensors_[to].bytes() / sizeof(std::uint16_t);
  std::vector<std::uint16_t> bits(count);
  std::transform(tensor.buffer.as<float>(), tensor.buffer.as<float>() + count, bits.begin(),
                 [](float value) { return to_bfloat16(value).bits; });
  return put(to, 0, std::as_bytes(std::span(bits)));
}

Result<void> CheckpointWriter::write_record(std::int64_t layer, std::int64_t expert,
                                            const std::array<Tensors, 3>& to) {
  const spec::RecordLayout& layout = source_.record_layout();
  std::vector<std::byte> record(static_cast<std::size_t>(layout.bytes()));
  SLUICE_TRY(source_.read_record(0, layer, expert, record));
  for (int m = 0; m < 3; ++m) {
    const quant::MatrixParts parts = quant::record_parts(layout, std::span<const std::byte>(record), m);
    const std::size_t first = to[static_cast<std::size_t>(m)].first;
    const auto number = static_cast<std::uint64_t>(expert);
    SLUICE_TRY(put(first, number * parts.data.size(), parts.data));
    SLUICE_TRY(put(first + 1, number * parts.scales.size(), parts.scales));
    SLUICE_TRY(put(first + 2, number * parts.biases.size(), parts.biases));
  }
  return {};
}

Result<void> CheckpointWriter::write_table(std::int64_t layer, std::int64_t first, std::int64_t rows,
                                           std::int64_t inside, const Tensors& to) {
  const auto codes = static_cast<std::size_t>(to.row_bytes), side = static_cast<std::size_t>(to.side_bytes);
  const auto count = static_cast<std::size_t>(rows);
  std::vector<std::byte> stored(count * (codes + 2 * side));
  SLUICE_TRY(source_.read_ngram_range(layer, first, stored));
  const auto row = static_cast<std::uint64_t>(inside);
  if (side == 0) return put(to.first, row * codes, stored);
  // A row of the table has codes, scales and biases side by side; here they lie in three tensors.
  const auto take = [&](std::size_t tensor, std::size_t offset, std::size_t bytes) {
    std::vector<std::byte> column(count * bytes);
    for (std::size_t r = 0; r < count; ++r) {
      std::copy_n(stored.begin() + static_cast<std::ptrdiff_t>(r * (codes + 2 * side) + offset), bytes,
                  column.begin() + static_cast<std::ptrdiff_t>(r * bytes));
    }
    return put(tensor, row * bytes, column);
  };
  SLUICE_TRY(take(to.first, 0, codes));
  SLUICE_TRY(take(to.first + 1, codes, side));
  return take(to.first + 2, codes + side, side);
}

Result<void> CheckpointWriter::open_shards(const fs::path& folder) {
  std::vector<std::vector<store::TensorPlan>> parts;
  std::uint64_t size = 0;
  for (const store::TensorPlan& tensor : tensors_) {
    if (parts.empty() || size + tensor.bytes() > options_.shard_bytes) {
      parts.emplace_back();
      size = 0;
    }
    size += tensor.bytes();
    places_.push_back({parts.size() - 1, parts.back().size()});
    parts.back().push_back(tensor);
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    paths_.push_back(folder / (parts.size() == 1
                                   ? std::string("model.safetensors")
                                   : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, parts.size())));
    SLUICE_ASSIGN(auto shard, store::SafetensorsWriter::create(paths_.back(), parts[i], {{"format", "mlx"}}));
    shards_.push_back(std::move(shard));
  }
  return {};
}

Result<void> CheckpointWriter::run_all() {
  const int jobs = options_.jobs > 0 ? options_.jobs : ThreadTeam::default_size();
  return run_tasks(work_.size(), static_cast<std::size_t>(jobs), "writing a checkpoint",
                   [&](std::size_t i) { return work_[i](); });
}

Result<CheckpointReport> CheckpointWriter::write(const fs::path& folder) {
  SLUICE_TRY(open_shards(folder));
  SLUICE_TRY(run_all());
  for (const auto& shard : shards_) SLUICE_TRY(shard->commit());
  if (shards_.size() > 1) {
    Json map = Json::object();
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      map[tensors_[i].name] = paths_[places_[i].shard].filename().string();
    }
    paths_.push_back(folder / "model.safetensors.index.json");
    SLUICE_TRY(write_text_file(
        paths_.back(),
        dump_json({{"metadata", {{"total_size", total_}}}, {"weight_map", std::move(map)}}, 1)));
  }
  SLUICE_TRY(write_text_file(folder / "config.json", dump_json(config_, 2) + "\n"));
  return CheckpointReport{total_, shards_.size()};
}

void CheckpointWriter::remove_files() const {
  std::error_code ignored;
  for (const fs::path& path : paths_) fs::remove(path, ignored);
}

bool is_checkpoint_file(const std::string& name) {
  return name == "config.json" || name == "model.safetensors.index.json" ||
         (name.starts_with("model") && (name.ends_with(".safetensors") || name.ends_with(".part")));
}

/// Makes sure that there is an empty folder; removes a checkpoint from it if that is asked for.
Result<void> prepare(const fs::path& folder, bool force) {
  std::error_code ec;
  fs::create_directories(folder, ec);
  std::vector<fs::path> old;
  if (!ec) {
    for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
      old.push_back(it->path());
    }
  }
  if (ec) return make_error(ErrorCode::kIo, "{}: opening the folder: {}", folder.string(), ec.message());
  for (const fs::path& path : old) {
    const std::string name = path.filename().string();
    if (force && is_checkpoint_file(name)) continue;
    return make_error(ErrorCode::kInvalidArgument, "{}: holds {}; a new or empty folder needed{}",
                      folder.string(), name, force ? "" : ", or --force to replace a checkpoint");
  }
  for (const fs::path& path : old) fs::remove(path, ec);
  if (ec) return make_error(ErrorCode::kIo, "{}: removing a checkpoint: {}", folder.string(), ec.message());
  return {};
}

}  // namespace

Result<CheckpointReport> write_checkpoint(const store::WeightSource& source, const fs::path& folder,
                                          const CheckpointOptions& options) {
  std::error_code ignored;
  const bool created = !fs::exists(folder, ignored);
  CheckpointWriter writer(source, options);
  SLUICE_TRY(writer.plan());
  SLUICE_TRY(prepare(folder, options.force));
  const auto written = [&]() -> Result<CheckpointReport> {
    SLUICE_ASSIGN(const std::uint64_t available, free_space(folder));
    if (writer.bytes() > available) {
      return make_error(ErrorCode::kIo, "{}: {} bytes of disk free, {} needed", folder.string(), available,
                        writer.bytes());
    }
    return writer.write(folder);
  }();
  if (!written.ok()) {
    writer.remove_files();
    if (created) fs::remove(folder, ignored);
  }
  return written;
}

}  // namespace sluice::pack

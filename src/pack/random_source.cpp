#include "pack/random_source.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/checksum.h"
#include "base/numbers.h"
#include "quant/codes.h"
#include "store/matrix.h"
#include "store/ngram_rows.h"
#include "store/parameters.h"

namespace sluice::pack {
namespace {

using spec::Format;
using Sides = RandomSource::Sides;
__extension__ using Wide = unsigned __int128;

constexpr double kEmbedding = 1.0;  // deviation of a token's embedding
constexpr double kNgram = 0.5;      // of n-gram rows

/// Random words by number, so that any part of a stream can be had alone: wyrand with its counter computed.
class Stream {
 public:
  explicit Stream(std::uint64_t key) : key_(key) {}

  [[nodiscard]] std::uint64_t word(std::uint64_t i) const {
    const std::uint64_t state = key_ + i * 0xA0761D6478BD642FULL;
    const Wide product = static_cast<Wide>(state) * (state ^ 0xE7037ED1A0B428DBULL);
    return static_cast<std::uint64_t>(product >> 64) ^ static_cast<std::uint64_t>(product);
  }
  /// Bytes from byte `first` of the stream on, a multiple of 8.
  void fill(std::uint64_t first, std::span<std::byte> out) const {
    std::uint64_t i = first / 8;
    std::size_t at = 0;
    for (; at + 8 <= out.size(); at += 8, ++i) {
      const std::uint64_t random = word(i);
      std::memcpy(out.data() + at, &random, 8);
    }
    const std::uint64_t random = word(i);
    std::memcpy(out.data() + at, &random, out.size() - at);
  }
  [[nodiscard]] std::uint8_t byte(std::uint64_t i) const {
    return static_cast<std::uint8_t>(word(i / 8) >> (8 * (i % 8)));
  }
  /// Even between -1 and 1, never 0.
  [[nodiscard]] float even(std::uint64_t i) const {
    const auto lane = static_cast<std::int16_t>(word(i / 4) >> (16 * (i % 4)));
    return (static_cast<float>(lane) + 0.5F) * 0x1p-15F;
  }

 private:
  std::uint64_t key_;
};

/// What is drawn for a tensor: codes or values, or which scale and bias a group has.
enum class Part : std::uint64_t { kCodes, kSides };

std::uint64_t key_of(std::uint64_t seed, std::string_view name, Part part) {
  return checksum(std::as_bytes(std::span(name)), seed * 2 + static_cast<std::uint64_t>(part));
}

/// Codes are drawn evenly; biases place their middle at 0, and scales differ by a factor of up to two.
Sides make_sides(Format format, double deviation) {
  const quant::Levels levels = quant::levels_of(format);
  const double steps = levels.top + 1;
  const double spread = std::sqrt((steps * steps - 1) / 12);
  Sides sides;
  for (std::size_t i = 0; i < sides.scales.size(); ++i) {
    const double relative = (static_cast<double>(i) + 0.5) / static_cast<double>(sides.scales.size());
    // From 2/3 to 4/3, whose mean square is near 1.
    const BFloat16 scale = to_bfloat16(static_cast<float>(deviation / spread * (2 + 2 * relative) / 3));
    sides.scales[i] = scale.bits;
    sides.biases[i] = to_bfloat16(-to_float(scale) * static_cast<float>(levels.top) / 2).bits;
  }
  return sides;
}

/// Scales and biases of the groups from number `first` on.
void fill_sides(const Sides& sides, const Stream& stream, std::uint64_t first, std::span<std::byte> scales,
                std::span<std::byte> biases) {
  constexpr std::size_t kEach = sizeof(std::uint16_t);
  for (std::size_t i = 0; i < scales.size() / kEach; ++i) {
    const std::uint8_t chosen = stream.byte(first + i);
    std::memcpy(scales.data() + kEach * i, &sides.scales[chosen], kEach);
    std::memcpy(biases.data() + kEach * i, &sides.biases[chosen], kEach);
  }
}

/// Codes of a record's matrix: those of 4 bits, or what truncating leaves of them.
void fill_codes(Format format, const Stream& stream, std::span<std::byte> out) {
  if (format == Format::kQ4) return stream.fill(0, out);
  std::array<std::byte, 4096> q4;
  const auto bits = static_cast<std::size_t>(spec::bits_of(format));
  for (std::size_t at = 0; at < out.size();) {
    const std::size_t low = std::min(q4.size() * bits / 4, out.size() - at);
    const auto block = std::span(q4).first(low * 4 / bits);
    stream.fill(at * 4 / bits, block);
    quant::truncate_codes(format, block, out.subspan(at, low));
    at += low;
  }
}

float rounded(double value) {
  return to_float(to_bfloat16(static_cast<float>(value)));
}

}  // namespace

Result<std::unique_ptr<RandomSource>> RandomSource::create(const RandomModel& model) {
  std::unique_ptr<RandomSource> source(new RandomSource);
  RandomSource& s = *source;
  s.folder_ = "random model";
  s.config_json_ = model.config;
  SLUICE_ASSIGN(s.config_, spec::parse_config(model.config, "config of the random model"));
  s.seed_ = model.seed;
  s.dense_bits_ = model.dense;
  s.zero_experts_ = model.zero_experts;
  for (store::DenseInfo& info : store::dense_tensors(s.config_, s.has_mtp())) {
    std::string name = info.name;
    s.dense_.emplace(std::move(name), std::move(info));
  }
  const std::int64_t hidden = s.config_.hidden, inter = s.config_.expert_inter;
  if (hidden % 32 != 0 || inter % 32 != 0) {
    return make_error(ErrorCode::kUnsupported,
                      "random model: experts of widths {} and {} found, multiples "
                      "of 32 needed",
                      hidden, inter);
  }
  const int group = hidden % 64 == 0 && inter % 64 == 0 ? 64 : 32;
  for (const Format format : {Format::kQ4, Format::kQ3, Format::kQ2}) {
    if (std::find(model.experts.begin(), model.experts.end(), format) == model.experts.end()) continue;
    s.layouts_.push_back({{hidden, inter, group}, format});
  }
  const bool other = std::any_of(model.experts.begin(), model.experts.end(), [](Format f) {
    return f != Format::kQ4 && f != Format::kQ3 && f != Format::kQ2;
  });
  if (other || s.layouts_.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "random model: experts of 4, 3 and 2 bits needed");
  }
  s.record_sides_[0] = make_sides(Format::kQ4, 1 / std::sqrt(static_cast<double>(hidden)));
  s.record_sides_[1] = s.record_sides_[0];
  s.record_sides_[2] = make_sides(Format::kQ4, 1 / std::sqrt(static_cast<double>(inter)));
  if (!s.config_.ple) return source;
  const auto& layers = s.config_.ple->layers;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    Table table;
    SLUICE_ASSIGN(table.hash, spec::derive_ngram_hash(s.config_, static_cast<std::int64_t>(i)));
    table.layout =
        store::packed_ngram_layout({Format::kBf16, 64, s.config_.ple->head_dim(), table.hash.rows});
    s.tables_.emplace(layers[i], std::move(table));
  }
  return source;
}

std::string RandomSource::form() const {
  return fmt::format("random{}, seed {}", zero_experts_ ? ", experts zero" : "", seed_);
}

store::ParameterCounts RandomSource::parameters() const {
  const auto infos = store::dense_tensors(config_, has_mtp());
  store::ParameterCounts counts = store::count_parameters(config_, infos, has_mtp());
  for (const auto& [layer, table] : tables_) {
    counts.ngram += static_cast<std::uint64_t>(table.layout.rows * table.layout.columns);
  }
  return counts;
}

std::vector<std::string> RandomSource::missing() const {
  if (!config_.has_vision) return {};
  return {"vision tower"};
}

Result<const store::DenseInfo*> RandomSource::dense_of(std::string_view name) const {
  const auto it = dense_.find(name == "lm_head" && config_.tie_embeddings ? "embed_tokens" : name);
  if (it != dense_.end()) return &it->second;
  return make_error(ErrorCode::kNotFound, "random model: no dense tensor {} in this model", name);
}

Result<store::DenseFormat> RandomSource::dense_format(std::string_view name) const {
  SLUICE_ASSIGN(const store::DenseInfo* info, dense_of(name));
  return store::packed_dense_format(*info, dense_bits_, Format::kBf16);
}

Result<store::DenseTensor> RandomSource::read_dense(std::string_view name) const {
  SLUICE_ASSIGN(const store::DenseInfo* info, dense_of(name));
  if (info->kind == store::DenseKind::kMatrix) return read_dense_rows(name, 0, info->shape.front());
  store::DenseTensor tensor;
  tensor.name = name;
  tensor.shape = info->shape;
  SLUICE_ASSIGN(tensor.buffer,
                AlignedBuffer::create(static_cast<std::size_t>(store::elements(*info)) * sizeof(float)));
  fill_vector(*info, tensor);
  return tensor;
}

Result<store::DenseTensor> RandomSource::read_dense_rows(std::string_view name, std::int64_t first,
                                                         std::int64_t rows) const {
  SLUICE_ASSIGN(const store::DenseInfo* info, dense_of(name));
  if (info->kind != store::DenseKind::kMatrix || first < 0 || rows < 1 ||
      first > info->shape.front() - rows) {
    return make_error(ErrorCode::kInvalidArgument, "{}: rows {} to {} asked for, the tensor is {}", name,
                      first, first + rows - 1, store::shape_text(info->shape));
  }
  SLUICE_ASSIGN(const store::DenseFormat format, dense_format(name));
  store::DenseTensor tensor;
  tensor.name = name;
  tensor.format = format.format;
  tensor.group = format.group;
  tensor.shape = {rows, info->shape[1]};
  const auto parts = store::tensor_parts(format.format, format.group, rows, info->shape[1]);
  tensor.scales_offset = parts.scales_offset;
  tensor.biases_offset = parts.biases_offset;
  SLUICE_ASSIGN(tensor.buffer, AlignedBuffer::create(parts.bytes));
  fill_matrix(*info, first, tensor);
  return tensor;
}

void RandomSource::fill_matrix(const store::DenseInfo& info, std::int64_t first,
                               store::DenseTensor& tensor) const {
  const std::int64_t rows = tensor.shape[0], in = tensor.shape[1];
  const double deviation = info.name == "embed_tokens" ? kEmbedding : 1 / std::sqrt(static_cast<double>(in));
  const Stream stream(key_of(seed_, info.name, Part::kCodes));
  const auto parts = store::tensor_parts(tensor.format, tensor.group, rows, in);
  const auto start = static_cast<std::uint64_t>(first * in);  // values before
  if (!spec::is_quantised(tensor.format)) {
    const auto width = static_cast<float>(deviation * std::sqrt(3.0));
    auto* out = tensor.buffer.as<std::uint16_t>();
    for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(rows * in); ++i) {
      out[i] = to_bfloat16(width * stream.even(start + i)).bits;
    }
    return;
  }
  const auto bytes = tensor.buffer.bytes();
  stream.fill(start * static_cast<std::uint64_t>(spec::bits_of(tensor.format)) / 8, bytes.first(parts.codes));
  fill_sides(make_sides(tensor.format, deviation), Stream(key_of(seed_, info.name, Part::kSides)),
             start / static_cast<std::uint64_t>(tensor.group),
             bytes.subspan(parts.scales_offset, parts.scales),
             bytes.subspan(parts.biases_offset, parts.scales));
}

void RandomSource::fill_vector(const store::DenseInfo& info, store::DenseTensor& tensor) const {
  double mean = 0;
  double deviation = 0.4;  // of taps
  if (info.kind == store::DenseKind::kNorm || info.name.ends_with(".norm")) {
    mean = 1;
    deviation = 0.1;
  } else if (info.kind == store::DenseKind::kVector) {
    // Decays between about 0.2 and 0.99 a token, as trained models have them.
    mean = info.name.ends_with("A_log") ? 0.5 : -1.5;
    deviation = 0.7;
  }
  const Stream stream(key_of(seed_, info.name, Part::kCodes));
  auto* out = tensor.buffer.as<float>();
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(store::elements(info)); ++i) {
    out[i] = rounded(mean + deviation * std::sqrt(3.0) * static_cast<double>(stream.even(i)));
  }
}

Result<void> RandomSource::read_record(std::size_t tier, std::int64_t layer, std::int64_t expert,
                                       std::span<std::byte> record) const {
  if (tier >= layouts_.size() || layer < 0 || layer >= config_.record_layers() || expert < 0 ||
      expert >= config_.experts || static_cast<std::int64_t>(record.size()) != layouts_[tier].bytes()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "random model: expert {} of layer {} in precision {} asked for, {} bytes", expert,
                      layer, tier, record.size());
  }
  if (zero_experts_) {
    std::memset(record.data(), 0, record.size());
    return {};
  }
  const spec::RecordLayout& layout = layouts_[tier];
  const auto part = [&](std::int64_t offset, std::int64_t bytes) {
    return record.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes));
  };
  for (int m = 0; m < 3; ++m) {
    const std::string name = fmt::format("experts.{}.{}.{}", layer, expert, m);
    fill_codes(layout.format, Stream(key_of(seed_, name, Part::kCodes)),
               part(layout.matrix_offset(m), layout.matrix_bytes()));
    fill_sides(record_sides_[static_cast<std::size_t>(m)], Stream(key_of(seed_, name, Part::kSides)), 0,
               part(layout.scales_offset(m), layout.scale_bytes()),
               part(layout.biases_offset(m), layout.scale_bytes()));
  }
  return {};
}

Result<const RandomSource::Table*> RandomSource::table_of(std::int64_t layer) const {
  const auto it = tables_.find(layer);
  if (it != tables_.end()) return &it->second;
  return make_error(ErrorCode::kInvalidArgument, "random model: layer {} has no n-gram embedding", layer);
}

Result<spec::NgramHash> RandomSource::ngram_hash(std::int64_t layer) const {
  SLUICE_ASSIGN(const Table* table, table_of(layer));
  return table->hash;
}

Result<spec::NgramLayout> RandomSource::ngram_layout(std::int64_t layer) const {
  SLUICE_ASSIGN(const Table* table, table_of(layer));
  return table->layout;
}

std::uint64_t RandomSource::ngram_bytes(std::int64_t layer) const {
  const auto table = table_of(layer);
  return table.ok()
             ? static_cast<std::uint64_t>(table.value()->layout.rows * table.value()->layout.row_bytes())
             : 0;
}

Result<void> RandomSource::read_ngram_rows(std::int64_t layer, std::span<const std::int64_t> rows,
                                           std::span<float> out) const {
  SLUICE_ASSIGN(const Table* table, table_of(layer));
  const auto columns = static_cast<std::size_t>(table->layout.columns);
  if (out.size() != rows.size() * columns) {
    return make_error(ErrorCode::kInvalidArgument, "n-gram rows: room for {} values given, {} needed",
                      out.size(), rows.size() * columns);
  }
  std::vector<std::byte> row(static_cast<std::size_t>(table->layout.row_bytes()));
  for (std::size_t i = 0; i < rows.size(); ++i) {
    SLUICE_TRY(read_ngram_range(layer, rows[i], row));
    store::decode_ngram_row(table->layout, row.data(), out.subspan(i * columns, columns));
  }
  return {};
}

Result<void> RandomSource::read_ngram_range(std::int64_t layer, std::int64_t first,
                                            std::span<std::byte> out) const {
  SLUICE_ASSIGN(const Table* table, table_of(layer));
  const spec::NgramLayout& layout = table->layout;
  SLUICE_TRY(store::check_ngram_range(layout, first, out.size()));
  const std::string name = fmt::format("ngram.{}", layer);
  const Stream stream(key_of(seed_, name, Part::kCodes));
  if (!spec::is_quantised(layout.format)) {
    const auto width = static_cast<float>(kNgram * std::sqrt(3.0));
    const auto start = static_cast<std::uint64_t>(first * layout.columns);
    for (std::size_t i = 0; i < out.size() / sizeof(std::uint16_t); ++i) {
      const std::uint16_t bits = to_bfloat16(width * stream.even(start + i)).bits;
      std::memcpy(out.data() + i * sizeof bits, &bits, sizeof bits);
    }
    return {};
  }
  const Stream chosen(key_of(seed_, name, Part::kSides));
  const Sides sides = make_sides(layout.format, kNgram);
  const auto codes = static_cast<std::size_t>(layout.code_bytes());
  const auto side = static_cast<std::size_t>(layout.scale_bytes());
  auto row = static_cast<std::uint64_t>(first);
  for (std::size_t at = 0; at < out.size(); at += codes + 2 * side, ++row) {
    stream.fill(row * codes, out.subspan(at, codes));
    fill_sides(sides, chosen, row * side / sizeof(std::uint16_t), out.subspan(at + codes, side),
               out.subspan(at + codes + side, side));
  }
  return {};
}

}  // namespace sluice::pack

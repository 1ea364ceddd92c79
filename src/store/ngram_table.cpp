#include "store/ngram_table.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "base/whole_blocks.h"
#include "store/ngram_rows.h"
#include "store/values.h"

namespace sluice::store {
namespace {

/// How many shards there are, whatever their numbers.
std::int64_t count_shards(const TensorIndex& index, const std::string& prefix) {
  std::int64_t count = 0;
  const auto& tensors = index.tensors();
  for (auto it = tensors.lower_bound(prefix); it != tensors.end() && it->first.starts_with(prefix); ++it) {
    // Scales and biases have a name behind the number.
    if (it->first.find('.', prefix.size()) == std::string::npos) ++count;
  }
  return count;
}

std::string shard_prefix(const TensorIndex& index, const std::string& table) {
  return index.has_prefix(table + ".shards.") ? table + ".shards." : table + ".shard_";
}

}  // namespace

Result<NgramTable> NgramTable::open(const TensorIndex& index,
                                    const std::optional<spec::QuantizationConfig>& quantization,
                                    const spec::ModelConfig& config, std::int64_t layer,
                                    std::uint64_t keep_below) {
  NgramTable table;
  table.columns_ = config.ple->head_dim();
  const std::string name = fmt::format("layers.{}.ple.ple_embedding.ngram_embedding", layer);
  const TensorRef* scale = index.find(name + ".weight_scale");
  if (index.find(name) != nullptr) {
    SLUICE_TRY(table.add(index, quantization, name, scale));
  } else {
    const std::string prefix = shard_prefix(index, name);
    const std::int64_t shards = std::max<std::int64_t>(count_shards(index, prefix), 1);
    for (std::int64_t i = 0; i < shards; ++i) {
      const std::string shard = prefix + std::to_string(i);
      if (index.find(shard) == nullptr) {
        return make_error(ErrorCode::kNotFound, "{}: tensor {} not found, [rows, {}] needed",
                          index.folder().string(), shard, table.columns_);
      }
      SLUICE_TRY(table.add(index, quantization, shard, scale));
    }
  }
  SLUICE_TRY(table.find_hash(index, config, layer));
  if (auto checked = spec::check_ngram_hash(table.hash_, *config.ple, table.rows_); !checked) {
    return make_error(checked.error().code, "{}: layer {}: {} ({} shards found)", index.folder().string(),
                      layer, checked.error().message, table.parts_.size());
  }
  table.keep_below_ = keep_below;
  return table;
}

Result<void> NgramTable::add(const TensorIndex& index,
                             const std::optional<spec::QuantizationConfig>& quantization,
                             const std::string& name, const TensorRef* scale) {
  const TensorRef& weight = *index.find(name);
  constexpr std::int64_t kMaxRows = std::int64_t{1} << 44;
  const std::int64_t rows = weight.info->shape.empty() ? 0 : weight.info->shape.front();
  if (weight.info->shape.size() != 2 || rows < 1 || rows > kMaxRows - rows_) {
    return weight.wrong(fmt::format("shape {}", shape_text(weight.info->shape)),
                        fmt::format("[rows, {}]", columns_));
  }
  Part part;
  part.first_row = rows_;
  part.rows = rows;
  const std::array<std::int64_t, 2> shape = {rows, columns_};
  if (weight.info->dtype == Dtype::kF8E4M3) {
    if (scale == nullptr || scale->info->elements() != 1) {
      return weight.wrong("F8_E4M3 without one value in weight_scale", "it beside the shards");
    }
    SLUICE_TRY(weight.need_shape(shape));
    SLUICE_TRY(read_floats(*scale, 0, {&fp8_scale_, 1}));
    part.matrix.weight = weight;
    part.matrix.format = spec::Format::kF32;
    part.matrix.in = columns_;
  } else {
    SLUICE_ASSIGN(part.matrix, locate_matrix(index, quantization, name, shape));
  }
  if (!parts_.empty()) {
    const MatrixRef& before = parts_.front().matrix;
    if (part.matrix.format != before.format || part.matrix.group != before.group ||
        part.matrix.weight.info->dtype != before.weight.info->dtype) {
      return weight.wrong("rows in another number format", "the format of the shards before");
    }
  }
  rows_ += rows;
  bytes_ += part.matrix.file_bytes();
  parts_.push_back(std::move(part));
  return {};
}

Result<void> NgramTable::find_hash(const TensorIndex& index, const spec::ModelConfig& config,
                                   std::int64_t layer) {
  const std::string prefix = fmt::format("layers.{}.ple.ple_embedding.", layer);
  struct Constant {
    const char* name;
    std::vector<std::int64_t>* values;
    std::int64_t count;
  };
  spec::NgramHash hash;
  const std::array<Constant, 3> constants = {
      {{"layer_multipliers", &hash.multipliers, config.ple->ngram_size},
       {"ngram_heads_vocab_sizes", &hash.sizes, config.ple->heads()},
       {"ngram_heads_offsets", &hash.offsets, config.ple->heads()}}};
  const auto present = std::count_if(constants.begin(), constants.end(), [&](const Constant& c) {
    return index.find(prefix + c.name) != nullptr;
  });
  if (present == 0) {
    const auto& layers = config.ple->layers;
    const auto place = std::find(layers.begin(), layers.end(), layer) - layers.begin();
    SLUICE_ASSIGN(hash_, spec::derive_ngram_hash(config, place));
    return {};
  }
  for (const Constant& c : constants) {
    const std::array<std::int64_t, 1> shape = {c.count};
    SLUICE_ASSIGN(const TensorRef tensor, index.need(prefix + c.name, shape));
    SLUICE_TRY(tensor.need_shape(shape));
    SLUICE_ASSIGN(*c.values, read_int64(tensor));
  }
  hash.heads_per_ngram = config.ple->heads_per_ngram;
  hash.eos = *config.eos_token;
  hash.rows = rows_;
  hash_ = std::move(hash);
  return {};
}

spec::NgramLayout NgramTable::layout() const {
  const MatrixRef& matrix = parts_.front().matrix;
  return {matrix.format, matrix.group, columns_, rows_};
}

std::size_t NgramTable::part_of(std::int64_t row) const {
  const auto after = std::upper_bound(parts_.begin(), parts_.end(), row,
                                      [](std::int64_t r, const Part& part) { return r < part.first_row; });
  return static_cast<std::size_t>(after - parts_.begin()) - 1;
}

Result<void> NgramTable::read(std::span<const std::int64_t> rows, std::span<float> out) const {
  const auto columns = static_cast<std::size_t>(columns_);
  if (out.size() != rows.size() * columns) {
    return make_error(ErrorCode::kInvalidArgument, "n-gram rows: room for {} values given, {} needed",
                      out.size(), rows.size() * columns);
  }
  std::span<const std::byte> memory;
  if (is_kept()) {
    SLUICE_ASSIGN(memory, kept());
  }
  const spec::NgramLayout form = layout();
  const auto row_bytes = static_cast<std::size_t>(form.row_bytes());
  std::vector<std::byte> buffer(memory.empty() ? row_bytes : 0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    SLUICE_TRY(check_ngram_row(form, rows[i]));
    const std::byte* row = buffer.data();
    if (memory.empty()) {
      SLUICE_TRY(read_range(rows[i], buffer));
    } else {
      row = memory.data() + static_cast<std::size_t>(rows[i]) * row_bytes;
    }
    decode_ngram_row(form, row, out.subspan(i * columns, columns));
  }
  return {};
}

Result<std::span<const std::byte>> NgramTable::kept() const {
  return kept_->get(static_cast<std::size_t>(rows_ * layout().row_bytes()),
                    [&](std::span<std::byte> out) { return read_range(0, out); });
}

Result<void> NgramTable::open_direct() {
  std::map<const SafetensorsFile*, const SafetensorsFile*> opened;
  const auto open_again = [&](TensorRef& tensor) -> Result<void> {
    if (tensor.file == nullptr) return {};
    const SafetensorsFile*& file = opened[tensor.file];
    if (file == nullptr) {
      SLUICE_ASSIGN(auto blocks, WholeBlocks::open(tensor.file->file().name()));
      SLUICE_ASSIGN(std::shared_ptr<const SafetensorsFile> again, SafetensorsFile::open(std::move(blocks)));
      if (again->header_checksum() != tensor.file->header_checksum()) {
        return tensor.wrong("another file than a moment ago", "the same");
      }
      file = again.get();
      direct_files_.push_back(std::move(again));
    }
    tensor.file = file;
    return {};
  };
  std::vector<MatrixRef> direct;
  for (const Part& part : parts_) {
    MatrixRef& matrix = direct.emplace_back(part.matrix);
    for (TensorRef* tensor : {&matrix.weight, &matrix.scales, &matrix.biases})
      SLUICE_TRY(open_again(*tensor));
  }
  direct_ = std::move(direct);
  return {};
}

Result<void> NgramTable::read_row(std::int64_t row, std::span<std::byte> out) const {
  const spec::NgramLayout form = layout();
  SLUICE_TRY(check_ngram_row(form, row));
  if (std::ssize(out) != form.row_bytes()) {
    return make_error(ErrorCode::kInvalidArgument, "n-gram row: room for {} bytes given, {} needed",
                      out.size(), form.row_bytes());
  }
  const std::size_t part = part_of(row);
  return read_part(direct_.empty() ? parts_[part].matrix : direct_[part], row - parts_[part].first_row, 1,
                   out.data());
}

Result<void> NgramTable::read_range(std::int64_t first, std::span<std::byte> out) const {
  const spec::NgramLayout form = layout();
  const std::int64_t rows = static_cast<std::int64_t>(out.size()) / form.row_bytes();
  SLUICE_TRY(check_ngram_range(form, first, out.size()));
  for (std::int64_t done = 0; done < rows;) {
    const Part& part = parts_[part_of(first + done)];
    const std::int64_t from = first + done - part.first_row;
    const std::int64_t count = std::min(rows - done, part.rows - from);
    SLUICE_TRY(read_part(part.matrix, from, count, out.data() + done * form.row_bytes()));
    done += count;
  }
  return {};
}

Result<void> NgramTable::read_part(const MatrixRef& matrix, std::int64_t first, std::int64_t rows,
                                   std::byte* out) const {
  const auto count = static_cast<std::size_t>(rows * columns_);
  if (matrix.format == spec::Format::kF32) {
    const std::span<float> values(reinterpret_cast<float*>(out), count);
    SLUICE_TRY(read_floats(matrix.weight, static_cast<std::uint64_t>(first * columns_), values));
    if (matrix.weight.info->dtype == Dtype::kF8E4M3) {
      for (float& value : values) value *= fp8_scale_;
    }
    return {};
  }
  const auto at = static_cast<std::uint64_t>(first) * matrix.row_bytes();
  if (!spec::is_quantised(matrix.format)) {
    return matrix.weight.file->read(*matrix.weight.info, at, {out, count * sizeof(std::uint16_t)});
  }
  // Codes, scales and biases lie in three tensors; a row of the table has them side by side.
  const auto code_bytes = static_cast<std::size_t>(matrix.row_bytes());
  const auto groups = static_cast<std::size_t>(matrix.groups());
  const auto n = static_cast<std::size_t>(rows);
  std::vector<std::byte> codes(n * code_bytes);
  std::vector<std::uint16_t> scales(n * groups);
  std::vector<std::uint16_t> biases(n * groups);
  SLUICE_TRY(matrix.weight.file->read(*matrix.weight.info, at, codes));
  SLUICE_TRY(read_bfloat16(matrix.scales, static_cast<std::uint64_t>(first) * groups, scales));
  SLUICE_TRY(read_bfloat16(matrix.biases, static_cast<std::uint64_t>(first) * groups, biases));
  const std::size_t side = groups * sizeof(std::uint16_t);
  for (std::size_t r = 0; r < n; ++r) {
    std::memcpy(out, codes.data() + r * code_bytes, code_bytes);
    std::memcpy(out + code_bytes, scales.data() + r * groups, side);
    std::memcpy(out + code_bytes + side, biases.data() + r * groups, side);
    out += code_bytes + 2 * side;
  }
  return {};
}

std::vector<const SafetensorsFile*> NgramTable::files_of(std::int64_t first, std::int64_t rows) const {
  std::vector<const SafetensorsFile*> files;
  for (const Part& part : parts_) {
    if (part.first_row >= first + rows || part.first_row + part.rows <= first) continue;
    for (const TensorRef& tensor : {part.matrix.weight, part.matrix.scales, part.matrix.biases}) {
      if (tensor.file != nullptr) files.push_back(tensor.file);
    }
  }
  return files;
}

}  // namespace sluice::store

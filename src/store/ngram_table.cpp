#include "store/ngram_table.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/numbers.h"
#include "store/values.h"

namespace sluice::store {
namespace {

/// Value `i` of a row of floats in any of the dtypes a table may have.
float plain_value(Dtype dtype, const std::byte* row, std::size_t i) {
  if (dtype == Dtype::kF8E4M3) return e4m3_to_float(std::to_integer<std::uint8_t>(row[i]));
  if (dtype == Dtype::kF32) {
    float value;
    std::memcpy(&value, row + i * sizeof value, sizeof value);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, row + i * sizeof bits, sizeof bits);
  return dtype == Dtype::kBf16 ? to_float(BFloat16{bits}) : to_float(Half{bits});
}

void dequantise(const MatrixRef& matrix, const std::byte* codes, const std::byte* scales,
                const std::byte* biases, std::span<float> out) {
  const int bits = spec::bits_of(matrix.format);
  const auto group = static_cast<std::size_t>(matrix.group);
  for (std::size_t g = 0; g * group < out.size(); ++g) {
    const float scale = plain_value(matrix.scales.info->dtype, scales, g);
    const float bias = plain_value(matrix.biases.info->dtype, biases, g);
    for (std::size_t i = g * group; i < (g + 1) * group; ++i) {
      // Codes fill little-endian words from the lowest bits, so in bytes too.
      const auto byte = std::to_integer<unsigned>(codes[bits == 8 ? i : i / 2]);
      const unsigned code = bits == 8 ? byte : (i % 2 == 0 ? byte & 0xfU : byte >> 4);
      out[i] = static_cast<float>(code) * scale + bias;
    }
  }
}

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
  if (table.bytes_ <= keep_below) SLUICE_TRY(table.keep());
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

Result<void> NgramTable::keep() {
  for (Part& part : parts_) {
    SLUICE_ASSIGN(part.codes, part.matrix.weight.file->read(*part.matrix.weight.info));
    if (!spec::is_quantised(part.matrix.format)) continue;
    SLUICE_ASSIGN(part.scales, part.matrix.scales.file->read(*part.matrix.scales.info));
    SLUICE_ASSIGN(part.biases, part.matrix.biases.file->read(*part.matrix.biases.info));
  }
  return {};
}

Result<void> NgramTable::read(std::span<const std::int64_t> rows, std::span<float> out) const {
  const auto columns = static_cast<std::size_t>(columns_);
  if (out.size() != rows.size() * columns) {
    return make_error(ErrorCode::kInvalidArgument, "n-gram rows: room for {} values given, {} needed",
                      out.size(), rows.size() * columns);
  }
  std::vector<std::byte> buffer(is_in_memory() ? 0 : 12 * columns);  // at most 4 + 4 + 4 bytes a column
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int64_t row = rows[i];
    if (row < 0 || row >= rows_) {
      return make_error(ErrorCode::kInvalidArgument, "n-gram row {} asked for, the table has {}", row, rows_);
    }
    const auto after = std::upper_bound(parts_.begin(), parts_.end(), row,
                                        [](std::int64_t r, const Part& part) { return r < part.first_row; });
    const Part& part = *(after - 1);
    SLUICE_TRY(read_row(part, row - part.first_row, buffer, out.subspan(i * columns, columns)));
  }
  return {};
}

Result<void> NgramTable::read_row(const Part& part, std::int64_t row, std::span<std::byte> buffer,
                                  std::span<float> out) const {
  const MatrixRef& matrix = part.matrix;
  // The row of one tensor: in memory, or read into the next bytes of the buffer.
  const auto fetch = [&](const TensorRef& tensor, const std::vector<std::byte>& memory,
                         std::size_t bytes) -> Result<const std::byte*> {
    const std::uint64_t offset = static_cast<std::uint64_t>(row) * bytes;
    if (!memory.empty()) return memory.data() + offset;
    const auto to = buffer.first(bytes);
    buffer = buffer.subspan(bytes);
    SLUICE_TRY(tensor.file->read(*tensor.info, offset, to));
    return to.data();
  };
  SLUICE_ASSIGN(const std::byte* codes, fetch(matrix.weight, part.codes, matrix.row_bytes()));
  if (spec::is_quantised(matrix.format)) {
    const auto side_bytes = [&](const TensorRef& side) {
      return static_cast<std::size_t>(matrix.groups() * dtype_size(side.info->dtype));
    };
    SLUICE_ASSIGN(const std::byte* scales, fetch(matrix.scales, part.scales, side_bytes(matrix.scales)));
    SLUICE_ASSIGN(const std::byte* biases, fetch(matrix.biases, part.biases, side_bytes(matrix.biases)));
    dequantise(matrix, codes, scales, biases, out);
    return {};
  }
  const Dtype dtype = matrix.weight.info->dtype;
  const float scale = dtype == Dtype::kF8E4M3 ? fp8_scale_ : 1.0F;
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = plain_value(dtype, codes, i) * scale;
  return {};
}

}  // namespace sluice::store

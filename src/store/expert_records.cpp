#include "store/expert_records.h"

#include "store/fp8.h"
#include "store/values.h"

namespace sluice::store {
namespace {

constexpr std::array<std::string_view, 3> kNames = {"gate_proj", "up_proj", "down_proj"};

std::string record_prefix(std::int64_t layer, std::int64_t trunk_layers) {
  return layer < trunk_layers ? fmt::format("layers.{}.mlp.", layer) : "mtp.layers.0.mlp.";
}

/// A record keeps the tensor's own bytes, except where its number type is not a record's.
bool is_raw(const MatrixRef& matrix) {
  return spec::is_quantised(matrix.format) || matrix.weight.info->dtype == Dtype::kBf16 ||
         matrix.weight.info->dtype == Dtype::kF32;
}

/// A part of the record as numbers: scales and biases lie on even offsets, float32 values on multiples of 4
/// whenever the record itself does.
template <class T>
std::span<T> numbers(std::span<std::byte> bytes) {
  return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
}

}  // namespace

std::int64_t ExpertRecords::rows_of(int which) const {
  return which == 2 ? layout_.geometry.hidden : layout_.geometry.inter;
}

std::int64_t ExpertRecords::columns_of(int which) const {
  return which == 2 ? layout_.geometry.inter : layout_.geometry.hidden;
}

Result<ExpertRecords> ExpertRecords::open(const TensorIndex& index,
                                          const std::optional<spec::QuantizationConfig>& quantization,
                                          const spec::ModelConfig& config, bool with_mtp) {
  ExpertRecords records;
  records.layout_.geometry.hidden = config.hidden;
  records.layout_.geometry.inter = config.expert_inter;
  records.experts_ = config.experts;
  const std::int64_t count = config.layer_count() + (with_mtp ? 1 : 0);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::string prefix = record_prefix(i, config.layer_count());
    SLUICE_ASSIGN(Layer layer, records.locate(index, quantization, prefix));
    SLUICE_TRY(records.take_format(layer, prefix));
    records.layers_.push_back(std::move(layer));
  }
  return records;
}

Result<ExpertRecords::Layer> ExpertRecords::locate(
    const TensorIndex& index, const std::optional<spec::QuantizationConfig>& quantization,
    const std::string& prefix) const {
  Layer layer;
  const std::string stacked = prefix + "switch_mlp.";
  const std::string fused = prefix + "experts.gate_up_proj";
  if (index.find(stacked + "gate_proj") != nullptr) {
    for (int m = 0; m < 3; ++m) {
      const std::array<std::int64_t, 3> shape = {experts_, rows_of(m), columns_of(m)};
      Matrix& matrix = layer.matrices[static_cast<std::size_t>(m)];
      SLUICE_ASSIGN(MatrixRef ref,
                    locate_matrix(index, quantization,
                                  stacked + std::string(kNames[static_cast<std::size_t>(m)]), shape));
      matrix = {{ref}, 0, rows_of(m)};
    }
  } else if (index.find(fused) != nullptr) {
    const std::int64_t inter = layout_.geometry.inter;
    const std::int64_t hidden = layout_.geometry.hidden;
    SLUICE_ASSIGN(const MatrixRef both,
                  locate_matrix(index, quantization, fused, std::array{experts_, 2 * inter, hidden}));
    SLUICE_ASSIGN(const MatrixRef down, locate_matrix(index, quantization, prefix + "experts.down_proj",
                                                      std::array{experts_, hidden, inter}));
    layer.matrices[0] = {{both}, 0, 2 * inter};
    layer.matrices[1] = {{both}, inter, 2 * inter};
    layer.matrices[2] = {{down}, 0, hidden};
  } else if (index.find(prefix + "experts.0.gate_proj") != nullptr) {
    SLUICE_TRY(locate_single(index, quantization, prefix, layer));
  } else {
    return make_error(ErrorCode::kNotFound,
                      "{}: no experts found for {}; {}experts.gate_up_proj, {}experts.0.gate_proj or "
                      "{}switch_mlp.gate_proj needed",
                      index.folder().string(), prefix, prefix, prefix, prefix);
  }
  return layer;
}

Result<void> ExpertRecords::locate_single(const TensorIndex& index,
                                          const std::optional<spec::QuantizationConfig>& quantization,
                                          const std::string& prefix, Layer& layer) const {
  for (int m = 0; m < 3; ++m) {
    const std::array<std::int64_t, 2> shape = {rows_of(m), columns_of(m)};
    Matrix& matrix = layer.matrices[static_cast<std::size_t>(m)];
    for (std::int64_t e = 0; e < experts_; ++e) {
      const std::string name = fmt::format("{}experts.{}.{}", prefix, e, kNames[static_cast<std::size_t>(m)]);
      SLUICE_ASSIGN(MatrixRef ref, is_fp8_matrix(index, name)
                                       ? locate_fp8_matrix(index, name, shape)
                                       : locate_matrix(index, quantization, name, shape));
      matrix.tensors.push_back(ref);
    }
  }
  const std::string surplus = fmt::format("{}experts.{}.", prefix, experts_);
  if (index.has_prefix(surplus)) {
    return make_error(ErrorCode::kCorrupt, "{}: tensor {}gate_proj found, {} experts needed (num_experts)",
                      index.folder().string(), surplus, experts_);
  }
  return {};
}

Result<void> ExpertRecords::take_format(const Layer& layer, const std::string& prefix) {
  for (const Matrix& matrix : layer.matrices) {
    for (const MatrixRef& ref : matrix.tensors) {
      if (!known_) {
        layout_.format = ref.format;
        layout_.geometry.group = ref.group;
        fp8_ = ref.weight.info->dtype == Dtype::kF8E4M3;
        known_ = true;
      }
      if (ref.format != layout_.format || ref.group != layout_.geometry.group) {
        return ref.weight.wrong(fmt::format("experts of {} with {} bits in groups of {}", prefix,
                                            spec::bits_of(ref.format), ref.group),
                                fmt::format("{} bits in groups of {}, as in the layers before",
                                            spec::bits_of(layout_.format), layout_.geometry.group),
                                ErrorCode::kUnsupported);
      }
    }
  }
  return {};
}

Result<void> ExpertRecords::read(std::int64_t layer, std::int64_t expert, std::span<std::byte> record) const {
  if (layer < 0 || layer >= std::ssize(layers_) || expert < 0 || expert >= experts_) {
    return make_error(ErrorCode::kInvalidArgument,
                      "expert record {} of layer {} asked for; the files have {} layers of {} experts",
                      expert, layer, layers_.size(), experts_);
  }
  if (static_cast<std::int64_t>(record.size()) != layout_.bytes()) {
    return make_error(ErrorCode::kInvalidArgument, "expert record: room for {} bytes given, {} needed",
                      record.size(), layout_.bytes());
  }
  for (int m = 0; m < 3; ++m) {
    SLUICE_TRY(read_matrix(layers_[static_cast<std::size_t>(layer)].matrices[static_cast<std::size_t>(m)], m,
                           expert, record));
  }
  return {};
}

Result<void> ExpertRecords::read_matrix(const Matrix& matrix, int which, std::int64_t expert,
                                        std::span<std::byte> record) const {
  const bool stacked = matrix.row_stride != 0;
  const MatrixRef& ref = matrix.tensors[stacked ? 0 : static_cast<std::size_t>(expert)];
  const auto row = static_cast<std::uint64_t>(stacked ? matrix.first_row + expert * matrix.row_stride : 0);
  const auto part = [&](std::int64_t offset, std::int64_t bytes) {
    return record.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes));
  };
  const auto codes = part(layout_.matrix_offset(which), layout_.matrix_bytes());
  if (ref.weight.info->dtype == Dtype::kF8E4M3) {
    SLUICE_TRY(read_fp8_matrix(ref, numbers<float>(codes)));
  } else if (is_raw(ref)) {
    SLUICE_TRY(ref.weight.file->read(*ref.weight.info, row * ref.row_bytes(), codes));
  } else {
    SLUICE_TRY(read_floats(ref.weight, row * static_cast<std::uint64_t>(ref.in), numbers<float>(codes)));
  }
  if (!spec::is_quantised(layout_.format)) return {};
  const std::uint64_t first = row * static_cast<std::uint64_t>(ref.groups());
  SLUICE_TRY(read_bfloat16(
      ref.scales, first, numbers<std::uint16_t>(part(layout_.scales_offset(which), layout_.scale_bytes()))));
  return read_bfloat16(ref.biases, first,
                       numbers<std::uint16_t>(part(layout_.biases_offset(which), layout_.scale_bytes())));
}

std::vector<const SafetensorsFile*> ExpertRecords::files_of(std::int64_t layer, std::int64_t expert) const {
  std::vector<const SafetensorsFile*> files;
  for (const Matrix& matrix : layers_[static_cast<std::size_t>(layer)].matrices) {
    const MatrixRef& ref = matrix.tensors[matrix.row_stride != 0 ? 0 : static_cast<std::size_t>(expert)];
    for (const TensorRef& tensor : {ref.weight, ref.scales, ref.biases}) {
      if (tensor.file != nullptr) files.push_back(tensor.file);
    }
  }
  return files;
}

}  // namespace sluice::store

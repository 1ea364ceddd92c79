#include "store/matrix.h"

#include <vector>

#include "store/values.h"

namespace sluice::store {
namespace {

Result<void> check_plain(const TensorIndex& index, const TensorRef& weight, std::string_view name) {
  if (weight.info->dtype == Dtype::kU32) {
    return weight.wrong("U32 without .scales", "BF16, F16, F32, or .scales and .biases beside it");
  }
  if (weight.info->dtype == Dtype::kF8E4M3 ||
      index.find(std::string(name) + ".weight_scale_inv") != nullptr) {
    return weight.wrong(dtype_name(weight.info->dtype),
                        "BF16, F16 or F32 (FP8 is read for per-expert matrices and n-gram tables only)",
                        ErrorCode::kUnsupported);
  }
  return need_float(weight);
}

Result<spec::AffineFormat> affine_format(const TensorRef& scales,
                                         const std::optional<spec::QuantizationConfig>& quantization,
                                         std::string_view name, std::int64_t in) {
  if (!quantization) {
    return scales.wrong("a quantised matrix", "quantization with bits and group_size in config.json");
  }
  const spec::AffineFormat format = quantization->format_of(name);
  if (format.bits == 0) {
    return scales.wrong("a quantised matrix", "none, as config.json says false for this module");
  }
  if (format.bits != 4 && format.bits != 8) {
    return scales.wrong(fmt::format("{} bits in config.json", format.bits), "4 or 8",
                        ErrorCode::kUnsupported);
  }
  if (format.group != 32 && format.group != 64 && format.group != 128) {
    return scales.wrong(fmt::format("group_size {} in config.json", format.group), "32, 64 or 128",
                        ErrorCode::kUnsupported);
  }
  if (in % format.group != 0) {
    return scales.wrong(fmt::format("group_size {} in config.json", format.group),
                        fmt::format("a divisor of the {} columns", in));
  }
  return format;
}

}  // namespace

std::uint64_t MatrixRef::row_bytes() const {
  if (spec::is_quantised(format)) return static_cast<std::uint64_t>(in * spec::bits_of(format) / 8);
  return static_cast<std::uint64_t>(in * dtype_size(weight.info->dtype));
}

std::uint64_t MatrixRef::file_bytes() const {
  std::uint64_t bytes = weight.info->bytes;
  if (scales.info != nullptr) bytes += scales.info->bytes + biases.info->bytes;
  return bytes;
}

Result<MatrixRef> locate_matrix(const TensorIndex& index,
                                const std::optional<spec::QuantizationConfig>& quantization,
                                std::string_view name, std::span<const std::int64_t> shape) {
  MatrixRef matrix;
  matrix.in = shape.back();
  SLUICE_ASSIGN(matrix.weight, index.need(name, shape));
  const TensorRef* scales = index.find(std::string(name) + ".scales");
  if (scales == nullptr) {
    SLUICE_TRY(check_plain(index, matrix.weight, name));
    SLUICE_TRY(matrix.weight.need_shape(shape));
    matrix.format = matrix.weight.info->dtype == Dtype::kBf16 ? spec::Format::kBf16 : spec::Format::kF32;
    return matrix;
  }

  matrix.scales = *scales;
  if (matrix.weight.info->dtype != Dtype::kU32) {
    return matrix.weight.wrong(dtype_name(matrix.weight.info->dtype), "U32, as it has .scales");
  }
  SLUICE_ASSIGN(const auto format, affine_format(*scales, quantization, name, matrix.in));
  matrix.format = format.bits == 4 ? spec::Format::kQ4 : spec::Format::kQ8;
  matrix.group = format.group;
  std::vector<std::int64_t> sides(shape.begin(), shape.end());
  sides.back() = matrix.in * format.bits / 32;
  SLUICE_TRY(matrix.weight.need_shape(sides));
  sides.back() = matrix.groups();
  SLUICE_ASSIGN(matrix.biases, index.need(std::string(name) + ".biases", sides));
  for (const TensorRef& side : {matrix.scales, matrix.biases}) {
    SLUICE_TRY(need_float(side));
    SLUICE_TRY(side.need_shape(sides));
  }
  return matrix;
}

TensorParts tensor_parts(spec::Format format, int group, std::int64_t rows, std::int64_t in) {
  constexpr std::size_t kAlign = AlignedBuffer::kDefaultAlignment;
  const auto aligned = [](std::size_t n) { return (n + kAlign - 1) / kAlign * kAlign; };
  TensorParts parts;
  parts.codes = static_cast<std::size_t>(rows * in * spec::bits_of(format) / 8);
  parts.bytes = parts.codes;
  if (spec::is_quantised(format)) {
    parts.scales = static_cast<std::size_t>(rows * (in / group)) * sizeof(std::uint16_t);
    parts.scales_offset = aligned(parts.codes);
    parts.biases_offset = parts.scales_offset + aligned(parts.scales);
    parts.bytes = parts.biases_offset + parts.scales;
  }
  return parts;
}

Result<DenseTensor> read_matrix(const MatrixRef& matrix, std::string_view name, std::int64_t first,
                                std::int64_t rows) {
  DenseTensor tensor;
  tensor.name = name;
  tensor.format = matrix.format;
  tensor.group = matrix.group;
  tensor.shape = {rows, matrix.in};
  const TensorParts parts = tensor_parts(matrix.format, matrix.group, rows, matrix.in);
  tensor.scales_offset = parts.scales_offset;
  tensor.biases_offset = parts.biases_offset;
  SLUICE_ASSIGN(tensor.buffer, AlignedBuffer::create(parts.bytes));
  if (matrix.format == spec::Format::kF32) {
    SLUICE_TRY(read_floats(matrix.weight, static_cast<std::uint64_t>(first * matrix.in),
                           {tensor.buffer.as<float>(), static_cast<std::size_t>(rows * matrix.in)}));
    return tensor;
  }
  SLUICE_TRY(matrix.weight.file->read(*matrix.weight.info,
                                      static_cast<std::uint64_t>(first) * matrix.row_bytes(),
                                      tensor.buffer.bytes().first(parts.codes)));
  if (!spec::is_quantised(matrix.format)) return tensor;
  const auto at = [&](std::size_t offset) {
    return std::span(reinterpret_cast<std::uint16_t*>(tensor.buffer.data() + offset),
                     parts.scales / sizeof(std::uint16_t));
  };
  const auto first_group = static_cast<std::uint64_t>(first * matrix.groups());
  SLUICE_TRY(read_bfloat16(matrix.scales, first_group, at(tensor.scales_offset)));
  SLUICE_TRY(read_bfloat16(matrix.biases, first_group, at(tensor.biases_offset)));
  return tensor;
}

std::optional<spec::QuantizationConfig> canonical_quantization(
    const std::optional<spec::QuantizationConfig>& quantization) {
  if (!quantization) return std::nullopt;
  spec::QuantizationConfig canonical = *quantization;
  for (auto& [name, format] : canonical.overrides) {
    MappedName mapped = map_name(name);
    if (!mapped.canonical.empty()) name = std::move(mapped.canonical);
  }
  return canonical;
}

}  // namespace sluice::store

#include "store/matrix.h"

#include <vector>

#include "store/dense_layout.h"
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

Result<DenseTensor> read_matrix(const MatrixRef& matrix, std::string_view name,
                                std::span<const std::int64_t> shape) {
  DenseTensor tensor;
  tensor.name = name;
  tensor.format = matrix.format;
  tensor.group = matrix.group;
  tensor.shape.assign(shape.begin(), shape.end());
  const auto out = static_cast<std::size_t>(shape.front());
  const auto elements = out * static_cast<std::size_t>(matrix.in);
  if (!spec::is_quantised(matrix.format)) {
    const bool wide = matrix.format == spec::Format::kF32;
    SLUICE_ASSIGN(tensor.buffer,
                  AlignedBuffer::create(elements * (wide ? sizeof(float) : sizeof(std::uint16_t))));
    if (wide) {
      SLUICE_TRY(read_floats(matrix.weight, 0, {tensor.buffer.as<float>(), elements}));
    } else {
      SLUICE_TRY(matrix.weight.file->read(*matrix.weight.info, 0,
                                          tensor.buffer.bytes().first(matrix.weight.info->bytes)));
    }
    return tensor;
  }

  const std::size_t codes = matrix.weight.info->bytes;
  const std::size_t sides = out * static_cast<std::size_t>(matrix.groups());
  const DenseLayout layout = dense_layout(matrix.format, matrix.group, static_cast<std::int64_t>(elements));
  tensor.scales_offset = layout.scales_offset;
  tensor.biases_offset = layout.biases_offset;
  SLUICE_ASSIGN(tensor.buffer, AlignedBuffer::create(layout.bytes));
  SLUICE_TRY(matrix.weight.file->read(*matrix.weight.info, 0, tensor.buffer.bytes().first(codes)));
  const auto at = [&](std::size_t offset) {
    return std::span(reinterpret_cast<std::uint16_t*>(tensor.buffer.data() + offset), sides);
  };
  SLUICE_TRY(read_bfloat16(matrix.scales, 0, at(tensor.scales_offset)));
  SLUICE_TRY(read_bfloat16(matrix.biases, 0, at(tensor.biases_offset)));
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

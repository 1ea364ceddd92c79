#include "support/weights.h"

#include <cstring>

#include "base/numbers.h"

namespace sluice::test {
namespace {

float bf16_at(const std::byte* from, std::size_t i) {
  std::uint16_t bits;
  std::memcpy(&bits, from + 2 * i, sizeof bits);
  return to_float(BFloat16{bits});
}

std::vector<float> values_of(spec::Format format, int group, std::size_t count, const std::byte* codes,
                             const std::byte* scales, const std::byte* biases) {
  std::vector<float> out(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t g = i / static_cast<std::size_t>(group);
    if (format == spec::Format::kF32) {
      std::memcpy(&out[i], codes + 4 * i, sizeof(float));
    } else if (format == spec::Format::kBf16) {
      out[i] = bf16_at(codes, i);
    } else {
      const bool four = format == spec::Format::kQ4;
      const auto byte = std::to_integer<unsigned>(codes[four ? i / 2 : i]);
      const unsigned code = !four ? byte : i % 2 == 0 ? byte & 0xfU : byte >> 4;
      out[i] = static_cast<float>(code) * bf16_at(scales, g) + bf16_at(biases, g);
    }
  }
  return out;
}

}  // namespace

std::vector<float> dense_values(const store::DenseTensor& tensor) {
  std::size_t count = 1;
  for (const std::int64_t n : tensor.shape) count *= static_cast<std::size_t>(n);
  const std::byte* data = tensor.buffer.data();
  return values_of(tensor.format, tensor.group, count, data, data + tensor.scales_offset,
                   data + tensor.biases_offset);
}

std::vector<float> record_values(const spec::RecordLayout& layout, std::span<const std::byte> record,
                                 int which) {
  return values_of(layout.format, layout.geometry.group,
                   static_cast<std::size_t>(layout.geometry.hidden * layout.geometry.inter),
                   record.data() + layout.matrix_offset(which), record.data() + layout.scales_offset(which),
                   record.data() + layout.biases_offset(which));
}

}  // namespace sluice::test

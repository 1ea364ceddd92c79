#include "backend/on_backend.h"

namespace sluice::backend {

HostMatrix random_matrix(Numbers& numbers, Format format, std::int64_t out, std::int64_t in, int group) {
  HostMatrix m{format, out, in, group, {}, {}, {}, {}};
  const auto append = [&m](const void* from, std::size_t bytes) {
    const auto* first = static_cast<const std::byte*>(from);
    m.data.insert(m.data.end(), first, first + bytes);
  };
  if (!is_quantised(format)) {
    for (std::int64_t i = 0; i < out * in; ++i) {
      float value = numbers.uniform(-1, 1);
      if (format == Format::kF32) {
        append(&value, sizeof value);
      } else {
        const BFloat16 narrow = to_bfloat16(value);
        append(&narrow.bits, sizeof narrow.bits);
        value = to_float(narrow);
      }
      m.values.push_back(value);
    }
    return m;
  }
  for (std::int64_t row = 0; row < out; ++row) {
    std::vector<std::uint8_t> codes;
    for (std::int64_t i = 0; i < in; ++i) {
      if (i % group == 0) {
        m.scales.push_back(to_bfloat16(numbers.uniform(-0.1F, 0.1F)).bits);
        m.biases.push_back(to_bfloat16(numbers.uniform(-0.5F, 0.5F)).bits);
      }
      codes.push_back(static_cast<std::uint8_t>(numbers.below(1U << bits_of(format))));
      const auto q = static_cast<float>(codes.back());
      const float scale = to_float(BFloat16{m.scales.back()});
      const float bias = to_float(BFloat16{m.biases.back()});
      const float level = format == Format::kQ3 ? 2 * q + 0.5F : format == Format::kQ2 ? 4 * q + 1.5F : q;
      m.values.push_back(level * scale + bias);
    }
    std::vector<std::byte> packed(quant::packed_bytes(format, codes.size()));
    quant::pack_codes(format, codes, packed);
    append(packed.data(), packed.size());
  }
  return m;
}

}  // namespace sluice::backend

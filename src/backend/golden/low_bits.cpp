#include "backend/golden/low_bits.h"

#include <cassert>

namespace sluice::backend::golden {

std::vector<std::byte> pack_codes(Format format, std::span<const std::uint8_t> codes) {
  assert(codes.size() % 32 == 0 && is_quantised(format));
  std::vector<std::byte> out(codes.size() * static_cast<std::size_t>(bits_of(format)) / 8);
  const auto put = [&out](std::size_t byte, unsigned bits, std::size_t shift) {
    out[byte] |= static_cast<std::byte>((bits << shift) & 0xffU);
  };
  for (std::size_t c = 0; c < codes.size(); ++c) {
    const unsigned code = codes[c];
    if (format == Format::kQ8) {
      put(c, code, 0);
      continue;
    }
    if (format == Format::kQ4) {
      put(c / 2, code & 15U, 4 * (c % 2));
      continue;
    }
    const bool three_bits = format == Format::kQ3;
    const std::size_t t = c % 32 / 16;
    const std::size_t r = c % 16;
    const std::size_t i = r / 2;
    const std::size_t p = i / 4 + (r % 2 == 1 ? 2 : 0);
    const std::size_t chunk = c / 32 * (three_bits ? 12 : 8);
    put(chunk + 4 * t + i % 4, (three_bits ? code >> 1 : code) & 3U, 2 * p);
    if (three_bits) put(chunk + 8 + i % 4, code & 1U, 4 * t + p);
  }
  return out;
}

}  // namespace sluice::backend::golden

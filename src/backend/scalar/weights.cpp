#include "backend/scalar/weights.h"

#include <cassert>
#include <cstring>

#include "base/numbers.h"

namespace sluice::backend::scalar {

namespace {

std::uint32_t byte_at(const std::byte* row, std::int64_t index) {
  return std::to_integer<std::uint32_t>(row[index]);
}

// The low-bit layout of operations.md. Its words are little-endian, so "bit 8 b + s of word t" is bit s of
// byte 4 t + b.
std::uint32_t low_bit_code(bool three_bits, const std::byte* row, std::int64_t index) {
  const std::int64_t in_chunk = index % 32;
  const std::int64_t t = in_chunk / 16;
  const std::int64_t r = in_chunk % 16;
  const std::int64_t i = r / 2;
  const std::int64_t p = i / 4 + (r % 2 == 1 ? 2 : 0);
  const std::int64_t byte = i % 4;
  const std::byte* chunk = row + index / 32 * (three_bits ? 12 : 8);
  const std::uint32_t upper = (byte_at(chunk, 4 * t + byte) >> (2 * p)) & 3U;
  if (!three_bits) return upper;
  return 2 * upper + ((byte_at(chunk, 8 + byte) >> (4 * t + p)) & 1U);
}

// Rows of float formats need no alignment: a record lies where its file put it.
template <class T>
T load(const std::byte* row, std::int64_t index) {
  T value;
  std::memcpy(&value, row + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

}  // namespace

std::uint32_t code_at(Format format, const std::byte* row, std::int64_t index) {
  switch (format) {
    case Format::kQ4:
      return (byte_at(row, index / 2) >> (4 * (index % 2))) & 15U;
    case Format::kQ8:
      return byte_at(row, index);
    case Format::kQ3:
      return low_bit_code(true, row, index);
    case Format::kQ2:
      return low_bit_code(false, row, index);
    case Format::kF32:
    case Format::kBf16:
      break;
  }
  assert(false && "float formats have no codes");
  return 0;
}

float code_value(Format format, std::uint32_t code, float scale, float bias) {
  const auto q = static_cast<float>(code);
  if (format == Format::kQ3) return (2 * q + 0.5F) * scale + bias;
  if (format == Format::kQ2) return (4 * q + 1.5F) * scale + bias;
  return q * scale + bias;
}

float weight_at(const Matrix& w, std::int64_t row, std::int64_t column) {
  const std::byte* data = w.data.address() + row * w.row_bytes();
  if (w.format == Format::kF32) return load<float>(data, column);
  if (w.format == Format::kBf16) return to_float(BFloat16{load<std::uint16_t>(data, column)});
  const std::int64_t group = row * (w.in / w.group) + column / w.group;
  return code_value(w.format, code_at(w.format, data, column), to_float(BFloat16{w.scales.address()[group]}),
                    to_float(BFloat16{w.biases.address()[group]}));
}

void dequantise_row(const Matrix& w, std::int64_t row, std::span<float> to) {
  assert(static_cast<std::int64_t>(to.size()) == w.in);
  for (std::int64_t column = 0; column < w.in; ++column) {
    to[static_cast<std::size_t>(column)] = weight_at(w, row, column);
  }
}

}  // namespace sluice::backend::scalar

// Codes of the quantised formats as they lie in memory: packing, unpacking, dropping bits.
#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>

#include "spec/formats.h"

namespace sluice::quant {

/// What a code q of a quantised format stands for: (mul q + add) s + b with the group's scale s and bias b.
/// Low-bit formats stand for the midpoint of the 4-bit codes that they cover (operations.md, low-bit GEMM).
struct Levels {
  int top = 0;  // the largest code
  float mul = 1;
  float add = 0;
};

constexpr Levels levels_of(spec::Format format) {
  switch (format) {
    case spec::Format::kQ8:
      return {255, 1, 0};
    case spec::Format::kQ4:
      return {15, 1, 0};
    case spec::Format::kQ3:
      return {7, 2, 0.5F};
    case spec::Format::kQ2:
      return {3, 4, 1.5F};
    case spec::Format::kF32:
    case spec::Format::kBf16:
      break;
  }
  return {};
}

/// Codes are packed in chunks of 32 inputs of a row: operations.md, "Low-bit record layout".
constexpr std::size_t kCodeChunk = 32;

/// Bytes of `count` packed codes, or of as many numbers in a float format.
constexpr std::size_t packed_bytes(spec::Format format, std::size_t count) {
  return count * static_cast<std::size_t>(spec::bits_of(format)) / 8;
}

/// Packs a row of codes, a multiple of 32 of them, as `format` (quantised) stores them. Bits of a code above
/// the format's are dropped. `out` has packed_bytes(format, codes.size()) bytes, any alignment.
void pack_codes(spec::Format format, std::span<const std::uint8_t> codes, std::span<std::byte> out);

/// The inverse: `codes.size()`, a multiple of 32, codes from as many packed ones.
void unpack_codes(spec::Format format, std::span<const std::byte> packed, std::span<std::uint8_t> codes);

/// The low-bit code that covers a 4-bit code: its upper bits. `low` is kQ4, kQ3 or kQ2.
constexpr std::uint8_t truncate_code(spec::Format low, std::uint8_t q4) {
  assert(spec::bits_of(low) <= 4);
  return static_cast<std::uint8_t>(q4 >> (4 - spec::bits_of(low)));
}

/// Truncates packed 4-bit codes to packed codes of `low` (kQ3 or kQ2), a multiple of 32 of them. Rows whose
/// length is a multiple of 32 may lie end to end. `out` has the size that `low` needs for them and does not
/// overlap `q4`.
void truncate_codes(spec::Format low, std::span<const std::byte> q4, std::span<std::byte> out);

}  // namespace sluice::quant

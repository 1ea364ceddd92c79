// Writing the low-bit layout of operations.md, as the golden files and the tests need it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "backend/types.h"

namespace sluice::backend::golden {

/// Packs a row of codes, a multiple of 32 of them, as `format` (kQ4, kQ8, kQ3 or kQ2) stores them. Bits of
/// a code above the format's are dropped.
std::vector<std::byte> pack_codes(Format format, std::span<const std::uint8_t> codes);

/// The low-bit code that covers a 4-bit code: its upper bits.
constexpr std::uint8_t truncate_code(Format format, std::uint8_t q4) {
  return static_cast<std::uint8_t>(q4 >> (4 - bits_of(format)));
}

}  // namespace sluice::backend::golden

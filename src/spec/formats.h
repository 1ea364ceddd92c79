// How weights are stored: number formats and the layout of expert records.
#pragma once

#include <cstdint>

namespace sluice::spec {

/// How the values of a weight matrix are stored.
enum class Format : std::uint8_t {
  kF32,
  kBf16,
  kQ4,  // codes of 4 bits, eight in a u32, lowest nibble first; value = q * scale + bias
  kQ8,  // codes of 8 bits, four in a u32, lowest byte first
  kQ3,  // low-bit layout of operations.md, value = (2q + 0.5) s + b
  kQ2,  // low-bit layout of operations.md, value = (4q + 1.5) s + b
};

/// Bits of one code; 32 and 16 for the float formats.
constexpr int bits_of(Format format) {
  switch (format) {
    case Format::kF32:
      return 32;
    case Format::kBf16:
      return 16;
    case Format::kQ8:
      return 8;
    case Format::kQ4:
      return 4;
    case Format::kQ3:
      return 3;
    case Format::kQ2:
      return 2;
  }
  return 0;
}

constexpr bool is_quantised(Format format) {
  return format != Format::kF32 && format != Format::kBf16;
}

/// Shape of the expert records of one model: three matrices, gate and up [inter][hidden], down
/// [hidden][inter].
struct ExpertGeometry {
  std::int64_t hidden = 0;
  std::int64_t inter = 0;
  int group = 64;
};

/// Where the parts of a record lie: gate, up, down codes; then gate scales, gate biases, up scales, up
/// biases, down scales, down biases (operations.md). Float formats have no scales and biases.
/// Matrix 0 is gate, 1 up, 2 down. All offsets are in bytes from the start of the record.
struct RecordLayout {
  ExpertGeometry geometry;
  Format format = Format::kQ4;

  [[nodiscard]] constexpr std::int64_t matrix_bytes() const {
    return geometry.hidden * geometry.inter * bits_of(format) / 8;
  }
  /// Bytes of one matrix's scales, and again of its biases.
  [[nodiscard]] constexpr std::int64_t scale_bytes() const {
    return is_quantised(format) ? geometry.hidden * geometry.inter / geometry.group * 2 : 0;
  }
  [[nodiscard]] constexpr std::int64_t matrix_offset(int which) const { return which * matrix_bytes(); }
  [[nodiscard]] constexpr std::int64_t scales_offset(int which) const {
    return 3 * matrix_bytes() + 2 * which * scale_bytes();
  }
  [[nodiscard]] constexpr std::int64_t biases_offset(int which) const {
    return scales_offset(which) + scale_bytes();
  }
  /// Bytes of a record without padding.
  [[nodiscard]] constexpr std::int64_t bytes() const { return 3 * matrix_bytes() + 6 * scale_bytes(); }
};

/// How the rows of an n-gram table are stored: each row whole, codes, then scales, then biases.
struct NgramLayout {
  Format format = Format::kQ4;
  int group = 32;
  std::int64_t columns = 0;
  std::int64_t rows = 0;
  [[nodiscard]] constexpr std::int64_t code_bytes() const { return columns * bits_of(format) / 8; }
  /// Bytes of a row's scales, and again of its biases.
  [[nodiscard]] constexpr std::int64_t scale_bytes() const {
    return is_quantised(format) ? columns / group * 2 : 0;
  }
  [[nodiscard]] constexpr std::int64_t row_bytes() const { return code_bytes() + 2 * scale_bytes(); }
};

}  // namespace sluice::spec

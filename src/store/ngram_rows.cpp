#include "store/ngram_rows.h"

#include <cstring>

#include "base/numbers.h"

namespace sluice::store {
namespace {

float bfloat16_at(const std::byte* from, std::size_t i) {
  BFloat16 value;
  std::memcpy(&value.bits, from + i * sizeof value.bits, sizeof value.bits);
  return to_float(value);
}

}  // namespace

Result<void> check_ngram_row(const spec::NgramLayout& layout, std::int64_t row) {
  if (row >= 0 && row < layout.rows) return {};
  return make_error(ErrorCode::kInvalidArgument, "n-gram row {} asked for, the table has {}", row,
                    layout.rows);
}

Result<void> check_ngram_range(const spec::NgramLayout& layout, std::int64_t first, std::size_t bytes) {
  const auto rows = static_cast<std::int64_t>(bytes) / layout.row_bytes();
  if (bytes % static_cast<std::size_t>(layout.row_bytes()) == 0 && first >= 0 &&
      first <= layout.rows - rows) {
    return {};
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "n-gram rows: {} bytes from row {} asked for, the table has {} rows of {} bytes", bytes,
                    first, layout.rows, layout.row_bytes());
}

void decode_ngram_row(const spec::NgramLayout& layout, const std::byte* row, std::span<float> out) {
  if (layout.format == spec::Format::kF32) {
    std::memcpy(out.data(), row, out.size_bytes());
    return;
  }
  if (layout.format == spec::Format::kBf16) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = bfloat16_at(row, i);
    return;
  }
  const auto group = static_cast<std::size_t>(layout.group);
  const std::byte* scales = row + layout.code_bytes();
  const std::byte* biases = scales + layout.scale_bytes();
  const bool eight = layout.format == spec::Format::kQ8;
  for (std::size_t g = 0; g * group < out.size(); ++g) {
    const float scale = bfloat16_at(scales, g);
    const float bias = bfloat16_at(biases, g);
    for (std::size_t i = g * group; i < (g + 1) * group; ++i) {
      // Codes fill little-endian words from the lowest bits, so in bytes too.
      const auto byte = std::to_integer<unsigned>(row[eight ? i : i / 2]);
      const unsigned code = eight ? byte : (i % 2 == 0 ? byte & 0xfU : byte >> 4);
      out[i] = static_cast<float>(code) * scale + bias;
    }
  }
}

}  // namespace sluice::store

// Sizes of the packed store's parts on disk, and of what is read from them.
#pragma once

#include <cstdint>

#include "spec/formats.h"

namespace sluice::spec {

/// Records are padded so that offset, length and slot are aligned for direct I/O and pages alike.
constexpr std::int64_t kSlotAlignment = 16384;
/// N-gram rows lie in pages, each with a checksum; no row crosses a page.
constexpr std::int64_t kNgramPage = 4096;
constexpr std::int64_t kNgramPageSum = 8;

/// Bytes that a record takes in its file and in a slot of the pool.
constexpr std::int64_t slot_bytes(const RecordLayout& layout) {
  return (layout.bytes() + kSlotAlignment - 1) / kSlotAlignment * kSlotAlignment;
}

/// Bytes of one n-gram row: codes of 4 bits, with a scale and a bias for each group of 32. Rows of other
/// widths stay bfloat16.
constexpr std::int64_t ngram_row_bytes(std::int64_t columns) {
  return columns % 32 == 0 ? columns / 2 + columns / 32 * 4 : columns * 2;
}

/// Bytes of a table of `rows` rows: whole pages.
constexpr std::int64_t ngram_table_bytes(std::int64_t rows, std::int64_t columns) {
  const std::int64_t row = ngram_row_bytes(columns);
  const std::int64_t room = kNgramPage - kNgramPageSum;
  if (row > room) return rows * ((row + room - 1) / room) * kNgramPage;
  const std::int64_t a_page = room / row;
  return (rows + a_page - 1) / a_page * kNgramPage;
}

}  // namespace sluice::spec

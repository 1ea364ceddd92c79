// Rows of an n-gram table as they are stored: bounds and values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "spec/formats.h"

namespace sluice::store {

/// kInvalidArgument unless the table has the row.
Result<void> check_ngram_row(const spec::NgramLayout& layout, std::int64_t row);

/// kInvalidArgument unless `bytes` are whole rows that the table has from `first` on.
Result<void> check_ngram_range(const spec::NgramLayout& layout, std::int64_t first, std::size_t bytes);

/// Values of one stored row: out [columns]. F32, BF16, 4 or 8 bits.
void decode_ngram_row(const spec::NgramLayout& layout, const std::byte* row, std::span<float> out);

}  // namespace sluice::store

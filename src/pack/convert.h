// Tensors and records of a source in the precision of the store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "pack/importance.h"
#include "store/manifest.h"
#include "store/source.h"

namespace sluice::pack {

/// The number of the source's precision `format`, if its experts have that one: it is kept as it is.
std::optional<std::size_t> kept_tier(const store::SourceForm& source, spec::Format format);

/// A block of rows of a dense tensor: its data, or codes, scales and biases.
struct Rows {
  std::vector<std::vector<std::byte>> parts;
};

/// Rows first .. first + rows - 1 of a matrix in the wanted format.
Result<Rows> convert_rows(const store::WeightSource& source, const store::StoredDense& wanted,
                          std::int64_t first, std::int64_t rows);

/// Makes the records of one expert in every precision of a store. One object a thread: it keeps its buffers.
class RecordConverter {
 public:
  RecordConverter(const store::WeightSource& source, const std::vector<store::StoredTier>& tiers,
                  const Importance* importance);

  /// Reads expert `expert` of record layer `layer`; then slots() are the whole slots, padding zero.
  Result<void> convert(std::int64_t layer, std::int64_t expert);
  [[nodiscard]] std::span<const std::byte> slot(std::size_t tier) const { return slots_[tier]; }

 private:
  Result<void> need_source();
  Result<void> need_values();
  Result<void> need_q4();
  Result<void> quantise(const spec::RecordLayout& layout, std::span<std::byte> record);

  const store::WeightSource& source_;
  const std::vector<store::StoredTier>& tiers_;
  const Importance* importance_;
  std::int64_t layer_ = 0, expert_ = 0;
  std::vector<std::byte> source_record_;
  std::vector<float> values_;         // gate, up, down
  std::vector<std::byte> q4_record_;  // what truncated tiers come from
  spec::RecordLayout q4_layout_;
  bool have_source_ = false, have_values_ = false, have_q4_ = false;
  std::vector<std::vector<std::byte>> slots_;
};

/// Rows of an n-gram table in the wanted layout, one after another.
Result<void> convert_ngram(const store::WeightSource& source, const store::StoredTable& wanted,
                           std::int64_t first, std::span<std::byte> out);

}  // namespace sluice::pack

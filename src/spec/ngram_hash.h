// Token history to n-gram table rows (model.md 3.10).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "spec/config.h"

namespace sluice::spec {

/// Constants of one PLE layer's hash: from the checkpoint when it has them, else derived from the config.
struct NgramHash {
  std::vector<std::int64_t> multipliers;  // [ngram_size]
  std::vector<std::int64_t> sizes;        // [heads] rows a head (distinct primes)
  std::vector<std::int64_t> offsets;      // [heads] first row of each head
  std::int64_t rows = 0;                  // rows of the table, padding included
  std::int64_t heads_per_ngram = 0;
  std::int64_t eos = 0;

  /// Rows for the token at the end of `history` (its last element), head by head.
  /// `history` needs only the last ngram_size tokens; missing predecessors count as EOS.
  void rows_of(std::span<const std::int32_t> history, std::span<std::int64_t> out) const;
};

/// The hash a file without constants would have. `index` is the layer's place among the PLE layers.
/// Fails with kLimit where the prime search would be unreasonable (the config is hostile).
Result<NgramHash> derive_ngram_hash(const ModelConfig& config, std::int64_t index);

/// Checks constants read from a file: counts, positive sizes, offsets consistent and inside `table_rows`.
Result<void> check_ngram_hash(const NgramHash& hash, const PleConfig& ple, std::int64_t table_rows);

}  // namespace sluice::spec

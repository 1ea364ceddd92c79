// Attention over one kv head, and the indexer's scores, on one thread.
//
// THE ORDER OF SUMMATION of attention is a function of the number of tokens a row sees: its token list is cut
// into parts of attention_part_tokens(count), a part into blocks of 64. A score is a sum over the head's
// vectors in order, one chain a lane, then sum4 (simd-inl.h). Weighted values are summed token by token
// inside a block; blocks are added in order to a part under a running maximum, parts in order to the result.
#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/backend.h"

namespace sluice::backend::cpu {

/// The queries of one row that share a kv head.
struct AttentionHeads {
  const float* q = nullptr;       // [group][dim]
  const float* keys = nullptr;    // of the kv head's first token
  const float* values = nullptr;  // likewise
  /// In place of keys and values: theirs in 8 bits, likewise, and their scales.
  struct Codes {
    const std::int8_t* codes = nullptr;
    const std::uint16_t* scales = nullptr;  // half, one for kQ8Group codes
  };
  Codes key_codes, value_codes;
  std::int64_t stride = 0;  // elements from a token to the next
  std::int64_t group = 0;
  std::int64_t dim = 0;
  const std::uint32_t* tokens = nullptr;  // null: 0, 1, 2 ...
  float scale = 1;
};

constexpr std::int64_t kAttentionBlock = 64;

/// Tokens of a part when a row sees `count`: sixteen parts at most.
constexpr std::int64_t attention_part_tokens(std::int64_t count) {
  return std::max<std::int64_t>(256, (count / 16 + kAttentionBlock) / kAttentionBlock * kAttentionBlock);
}
constexpr std::int64_t attention_parts(std::int64_t count) {
  const std::int64_t tokens = attention_part_tokens(count);
  return (count + tokens - 1) / tokens;
}

/// Floats of a part: maxima [group], totals [group], weighted sums of values [group][dim].
constexpr std::int64_t attention_part_floats(std::int64_t group, std::int64_t dim) {
  return (group * (dim + 2) + 15) / 16 * 16;
}
/// `codes`: keys and values are in 8 bits, and a block of them is unpacked here.
constexpr std::int64_t attention_scratch_floats(std::int64_t group, std::int64_t dim, bool codes) {
  return (group + (codes ? 2 * dim : 0)) * kAttentionBlock;
}

/// Part of the tokens [first, last) of the list. `scratch`: attention_scratch_floats.
void attention_part(const AttentionHeads& heads, std::int64_t first, std::int64_t last, float* scratch,
                    float* part);
/// An empty part, to merge others into.
void attention_begin(std::int64_t group, std::int64_t dim, float* into);
void attention_merge(std::int64_t group, std::int64_t dim, const float* part, float* into);
/// out [group][dim] = sums / totals, zeros where nothing was seen.
void attention_finish(std::int64_t group, std::int64_t dim, const float* part, float* out);

/// scores[b] = sum over heads of relu(q[h] . key[b]) * scale for b in [first, last); q [heads][dim].
void index_scores_range(const float* q, std::int64_t heads, std::int64_t dim, const float* keys, float scale,
                        std::int64_t first, std::int64_t last, float* scores);

}  // namespace sluice::backend::cpu

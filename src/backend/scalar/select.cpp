// The token selector of sparse attention (model.md 3.7).
#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/scalar/math.h"
#include "backend/scalar/norm_rope.h"
#include "backend/scalar/rank.h"
#include "backend/scalar/scalar_backend.h"

namespace sluice::backend {

void ScalarBackend::index_block_keys(IndexShape shape, Dev<const float> raw_keys, std::int64_t first,
                                     std::int64_t last, Dev<const float> w, float eps, const Rope& rope,
                                     Dev<float> block_keys) {
  const std::int64_t dim = shape.head_dim;
  std::vector<double> mean(static_cast<std::size_t>(dim));
  std::vector<double> normed;
  for (std::int64_t b = first; b < last; ++b) {
    for (std::int64_t i = 0; i < dim; ++i) {
      double sum = 0;
      for (std::int64_t t = 0; t < shape.ratio; ++t) {
        sum += raw_keys.address()[(b * shape.ratio + t) * dim + i];
      }
      mean[static_cast<std::size_t>(i)] = sum / static_cast<double>(shape.ratio);
    }
    scalar::norm_rope_head(mean.data(), w.address(), dim, eps, rope, b - first, normed,
                           block_keys.address() + b * dim);
  }
}

void ScalarBackend::index_scores(IndexShape shape, Dev<const float> q, Dev<const float> block_keys,
                                 Dev<const std::uint32_t> blocks, std::int64_t rows, std::int64_t stride,
                                 Dev<float> scores) {
  const std::int64_t dim = shape.head_dim;
  const double scale = 1 / std::sqrt(static_cast<double>(dim));
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t b = 0; b < stride; ++b) {
      double sum = 0;
      for (std::int64_t h = 0; b < blocks.address()[r] && h < shape.heads; ++h) {
        const double dot =
            scalar::dot(q.address() + (r * shape.heads + h) * dim, block_keys.address() + b * dim, dim);
        sum += dot < 0 ? 0 : dot;  // NaN stays, and then ranks last
      }
      scores.address()[r * stride + b] = static_cast<float>(sum * scale);
    }
  }
}

void ScalarBackend::index_select(IndexShape shape, Dev<const float> scores, std::int64_t score_stride,
                                 Dev<const std::uint32_t> visible, std::int64_t rows,
                                 Dev<std::uint32_t> tokens, std::int64_t token_stride,
                                 Dev<std::uint32_t> count, Dev<std::uint8_t> dense, Dev<std::uint32_t> mask,
                                 std::int64_t mask_words) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t seen = visible.address()[r];
    const std::int64_t complete = seen / shape.ratio;
    const bool is_dense = complete <= shape.block_budget;
    auto chosen = is_dense ? std::vector<std::uint32_t>{}
                           : scalar::top_k(scores.address() + r * score_stride, complete, shape.block_budget);
    std::sort(chosen.begin(), chosen.end());
    dense.address()[r] = is_dense ? 1 : 0;
    if (mask) {
      std::uint32_t* words = mask.address() + r * mask_words;
      std::fill_n(words, mask_words, 0U);
      const auto set = [words](std::int64_t block) { words[block / 32] |= 1U << (block % 32); };
      for (const std::uint32_t block : chosen) set(block);
      for (std::int64_t block = 0; is_dense && block < complete; ++block) set(block);
    }
    if (is_dense) {
      count.address()[r] = static_cast<std::uint32_t>(seen);
      continue;
    }
    std::uint32_t* to = tokens.address() + r * token_stride;
    std::uint32_t* const row_end = to + token_stride;
    const auto append = [&to, row_end](std::int64_t first, std::int64_t last) {
      for (std::int64_t t = first; t < last && to != row_end; ++t) *to++ = static_cast<std::uint32_t>(t);
    };
    for (const std::uint32_t block : chosen) append(block * shape.ratio, (block + 1) * shape.ratio);
    append(complete * shape.ratio, seen);
    count.address()[r] = static_cast<std::uint32_t>(token_stride - (row_end - to));
    std::fill(to, row_end, 0xffffffffU);
  }
}

}  // namespace sluice::backend

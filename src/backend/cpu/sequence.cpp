// Operations over a sequence's state: DeltaNet, attention, selection.
#include <algorithm>
#include <cmath>
#include <limits>

#include "backend/cpu/attention_kernels.h"
#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/delta_kernels.h"
#include "backend/cpu/select_kernels.h"
#include "backend/cpu/split.h"

namespace sluice::backend {

void CpuBackend::delta_scan(DeltaShape shape, Dev<const float> qkv, Dev<const float> decay,
                            Dev<const float> beta, std::int64_t rows, Dev<const float> state_in,
                            Dev<float> state_out, Dev<float> y) {
  if (shape.key_dim > cpu::kMaxKeyDim || rows == 0) {
    return ScalarBackend::delta_scan(shape, qkv, decay, beta, rows, state_in, state_out, y);
  }
  const cpu::DeltaScan scan{shape, qkv.address(),      decay.address(),     beta.address(),
                            rows,  state_in.address(), state_out.address(), y.address()};
  const std::int64_t parts = (shape.value_dim + cpu::kDeltaColumns - 1) / cpu::kDeltaColumns;
  const auto elements =
      static_cast<double>(rows * shape.key_dim * std::min(shape.value_dim, cpu::kDeltaColumns));
  split(shape.value_heads * parts, kPerElement * elements, [&](int, std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t column = i % parts * cpu::kDeltaColumns;
      cpu::delta_columns(scan, i / parts, column, std::min(column + cpu::kDeltaColumns, shape.value_dim));
    }
  });
}

void CpuBackend::attention(AttentionShape shape, Dev<const float> q, Dev<const float> keys,
                           Dev<const float> values, const TokenSelection& selection, std::int64_t rows,
                           Dev<float> out) {
  cpu::AttentionHeads heads;
  heads.q = q.address();
  heads.keys = keys.address();
  heads.values = values.address();
  attend(shape, heads, selection, rows, out);
}

void CpuBackend::attention_q8(AttentionShape shape, Dev<const float> q, const KeysValuesQ8& cache,
                              const TokenSelection& selection, std::int64_t rows, Dev<float> out) {
  cpu::AttentionHeads heads;
  heads.q = q.address();
  heads.key_codes = {cache.keys.address(), cache.key_scales.address()};
  heads.value_codes = {cache.values.address(), cache.value_scales.address()};
  attend(shape, heads, selection, rows, out);
}

void CpuBackend::quantise_q8(Dev<const float> x, std::int64_t groups, Dev<std::int8_t> codes,
                             Dev<std::uint16_t> scales) {
  split(groups, kPerElement * 8 * kQ8Group, [&](int, std::int64_t begin, std::int64_t end) {
    ScalarBackend::quantise_q8(x + begin * kQ8Group, end - begin, codes + begin * kQ8Group, scales + begin);
  });
}

void CpuBackend::attend(AttentionShape shape, const cpu::AttentionHeads& all, const TokenSelection& selection,
                        std::int64_t rows, Dev<float> out) {
  const std::int64_t dim = shape.head_dim;
  const std::int64_t group = shape.heads / shape.kv_heads;
  const std::int64_t part_floats = cpu::attention_part_floats(group, dim);
  const bool codes = all.key_codes.codes != nullptr;
  const std::int64_t thread_floats = 2 * part_floats + cpu::attention_scratch_floats(group, dim, codes);
  float* thread_memory = attention_threads_.get(team_.size() * thread_floats);
  const std::uint32_t* counts = selection.count.address();
  const auto heads_of = [&](std::int64_t r, std::int64_t kv) {
    const bool dense = selection.dense && selection.dense.address()[r] != 0;
    cpu::AttentionHeads heads = all;
    heads.q += (r * shape.heads + kv * group) * dim;
    if (codes) {
      for (auto* of : {&heads.key_codes, &heads.value_codes}) {
        of->codes += kv * dim;
        of->scales += kv * dim / kQ8Group;
      }
    } else {
      heads.keys += kv * dim;
      heads.values += kv * dim;
    }
    heads.stride = shape.kv_heads * dim;
    heads.group = group;
    heads.dim = dim;
    heads.tokens = dense ? nullptr : selection.tokens.address() + r * selection.stride;
    heads.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(dim)));
    return heads;
  };
  const auto out_of = [&](std::int64_t r, std::int64_t kv) {
    return out.address() + (r * shape.heads + kv * group) * dim;
  };
  double visible = 0;
  std::int64_t most_parts = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    visible += counts[r];
    most_parts = std::max(most_parts, cpu::attention_parts(counts[r]));
  }
  const double pair_cost = kPerElement * static_cast<double>(group * dim);  // of a token and a kv head

  const std::int64_t pairs = rows * shape.kv_heads;
  if (pairs >= 4 * team_.size() || most_parts <= 1) {
    // Whole (row, kv head) pairs. In a prefill later rows see more: pairs are dealt from both ends, so that
    // contiguous halves cost the same.
    split(pairs, std::max(pair_cost * visible / static_cast<double>(std::max<std::int64_t>(rows, 1)), 1.0),
          [&](int thread, std::int64_t begin, std::int64_t end) {
            float* part = thread_memory + thread * thread_floats;
            float* whole = part + part_floats;
            float* scratch = whole + part_floats;
            for (std::int64_t i = begin; i < end; ++i) {
              const std::int64_t pair = i % 2 == 0 ? i / 2 : pairs - 1 - i / 2;
              const std::int64_t r = pair / shape.kv_heads;
              const std::int64_t kv = pair % shape.kv_heads;
              const std::int64_t count = counts[r];
              const std::int64_t tokens = cpu::attention_part_tokens(count);
              const auto heads = heads_of(r, kv);
              cpu::attention_begin(group, dim, whole);
              for (std::int64_t first = 0; first < count; first += tokens) {
                cpu::attention_part(heads, first, std::min(first + tokens, count), scratch, part);
                cpu::attention_merge(group, dim, part, whole);
              }
              cpu::attention_finish(group, dim, whole, out_of(r, kv));
            }
          });
    return;
  }
  // Few rows: their parts are spread over the threads, then merged in the same order.
  float* parts = attention_parts_.get(pairs * most_parts * part_floats);
  split(pairs * most_parts, pair_cost * visible / static_cast<double>(rows * most_parts),
        [&](int thread, std::int64_t begin, std::int64_t end) {
          float* scratch = thread_memory + thread * thread_floats;
          for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t r = i / most_parts / shape.kv_heads;
            const std::int64_t count = counts[r];
            const std::int64_t tokens = cpu::attention_part_tokens(count);
            const std::int64_t first = i % most_parts * tokens;
            if (first >= count) continue;
            cpu::attention_part(heads_of(r, i / most_parts % shape.kv_heads), first,
                                std::min(first + tokens, count), scratch, parts + i * part_floats);
          }
        });
  split(pairs, kPerElement * static_cast<double>(most_parts * group * dim),
        [&](int thread, std::int64_t begin, std::int64_t end) {
          float* whole = thread_memory + thread * thread_floats;
          for (std::int64_t pair = begin; pair < end; ++pair) {
            const std::int64_t r = pair / shape.kv_heads;
            cpu::attention_begin(group, dim, whole);
            for (std::int64_t p = 0; p < cpu::attention_parts(counts[r]); ++p) {
              cpu::attention_merge(group, dim, parts + (pair * most_parts + p) * part_floats, whole);
            }
            cpu::attention_finish(group, dim, whole, out_of(r, pair % shape.kv_heads));
          }
        });
}

void CpuBackend::index_scores(IndexShape shape, Dev<const float> q, Dev<const float> block_keys,
                              Dev<const std::uint32_t> blocks, std::int64_t rows, std::int64_t stride,
                              Dev<float> scores) {
  constexpr std::int64_t kUnit = 64;  // blocks whose keys stay in cache over all rows
  const std::int64_t dim = shape.head_dim;
  const auto scale = static_cast<float>(1 / std::sqrt(static_cast<double>(dim)));
  split((stride + kUnit - 1) / kUnit, kPerElement / 2 * static_cast<double>(rows * kUnit * shape.heads * dim),
        [&](int, std::int64_t begin, std::int64_t end) {
          for (std::int64_t first = begin * kUnit; first < std::min(end * kUnit, stride); first += kUnit) {
            const std::int64_t last = std::min(first + kUnit, stride);
            for (std::int64_t r = 0; r < rows; ++r) {
              float* row = scores.address() + r * stride;
              const std::int64_t seen = std::clamp<std::int64_t>(blocks.address()[r], first, last);
              cpu::index_scores_range(q.address() + r * shape.heads * dim, shape.heads, dim,
                                      block_keys.address(), scale, first, seen, row);
              std::fill(row + seen, row + last, 0.0F);
            }
          }
        });
}

void CpuBackend::index_select(IndexShape shape, Dev<const float> scores, std::int64_t score_stride,
                              Dev<const std::uint32_t> visible, std::int64_t rows, Dev<std::uint32_t> tokens,
                              std::int64_t token_stride, Dev<std::uint32_t> count, Dev<std::uint8_t> dense,
                              Dev<std::uint32_t> mask, std::int64_t mask_words) {
  std::int64_t most = 0;  // complete blocks of a row
  for (std::int64_t r = 0; r < rows; ++r) {
    most = std::max(most, std::int64_t{visible.address()[r]} / shape.ratio);
  }
  const std::int64_t words = (most + 31) / 32;
  const std::int64_t thread_words = cpu::select_scratch(most) + words;
  std::uint32_t* memory = select_keys_.get(team_.size() * thread_words);
  const auto select_row = [&](std::int64_t r, std::uint32_t* scratch) {
    const std::int64_t seen = visible.address()[r];
    const std::int64_t complete = seen / shape.ratio;
    const bool is_dense = complete <= shape.block_budget;
    std::uint32_t* row_mask = mask ? mask.address() + r * mask_words : nullptr;
    dense.address()[r] = is_dense ? 1 : 0;
    if (is_dense) {
      count.address()[r] = static_cast<std::uint32_t>(seen);
      if (row_mask == nullptr) return;
      std::fill_n(row_mask, mask_words, 0U);
      std::fill_n(row_mask, complete / 32, 0xffffffffU);
      if (complete % 32 != 0) row_mask[complete / 32] = (1U << (complete % 32)) - 1;
      return;
    }
    std::uint32_t* bits = scratch + cpu::select_scratch(most);
    cpu::select_blocks(scores.address() + r * score_stride, complete, shape.block_budget, scratch, bits);
    std::uint32_t* to = tokens.address() + r * token_stride;
    std::uint32_t* const row_end = to + token_stride;
    const auto append = [&to, row_end](std::int64_t first, std::int64_t last) {
      for (std::int64_t t = first; t < last && to != row_end; ++t) *to++ = static_cast<std::uint32_t>(t);
    };
    const std::int64_t row_words = (complete + 31) / 32;
    for (std::int64_t word = 0; word < row_words; ++word) {
      for (std::uint32_t rest = bits[word]; rest != 0; rest &= rest - 1) {
        const std::int64_t block = word * 32 + __builtin_ctz(rest);
        append(block * shape.ratio, (block + 1) * shape.ratio);
      }
    }
    append(complete * shape.ratio, seen);
    count.address()[r] = static_cast<std::uint32_t>(token_stride - (row_end - to));
    std::fill(to, row_end, 0xffffffffU);
    if (row_mask == nullptr) return;
    std::copy_n(bits, row_words, row_mask);
    std::fill(row_mask + row_words, row_mask + mask_words, 0U);
  };
  split(rows, 2 + static_cast<double>(most), [&](int thread, std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) select_row(r, memory + thread * thread_words);
  });
}

void CpuBackend::argmax_rows(Dev<const float> x, std::int64_t rows, std::int64_t width,
                             Dev<std::int32_t> index) {
  split(rows, kPerElement * static_cast<double>(width), [&](int, std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      index.address()[r] = static_cast<std::int32_t>(cpu::argmax(x.address() + r * width, width));
    }
  });
}

void CpuBackend::router_topk(Dev<const float> logits, std::int64_t rows, std::int64_t n, std::int64_t k,
                             bool renormalise, Dev<std::uint32_t> index, Dev<float> weight) {
  const std::int64_t room = (n + 15) / 16 * 16;
  float* memory = router_values_.get(team_.size() * room);
  split(rows, kPerElement * static_cast<double>(n * (k + 2)),
        [&](int thread, std::int64_t begin, std::int64_t end) {
          for (std::int64_t r = begin; r < end; ++r) {
            cpu::router_row(logits.address() + r * n, n, k, renormalise, memory + thread * room,
                            index.address() + r * k, weight.address() + r * k);
          }
        });
}

}  // namespace sluice::backend

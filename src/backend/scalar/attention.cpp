// Attention over selected tokens (model.md 3.5, 3.6).
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "backend/scalar/math.h"
#include "backend/scalar/norm_rope.h"
#include "backend/scalar/q8.h"
#include "backend/scalar/scalar_backend.h"
#include "base/numbers.h"

namespace sluice::backend {

namespace {

/// Turns scores of the base-2 domain into probabilities, in place. Nothing to see (no score, or none above
/// -infinity) gives zeros.
void softmax_base2(std::vector<double>& scores) {
  double max = -std::numeric_limits<double>::infinity();
  for (const double s : scores) max = std::max(max, s);
  double total = 0;
  for (double& s : scores) {
    s = s == -std::numeric_limits<double>::infinity() ? 0 : std::exp2(scalar::below_max(s, max));
    total += s;
  }
  if (total == 0) return;
  for (double& s : scores) s /= total;
}

double score_scale(std::int64_t head_dim) {
  return std::log2(std::exp(1.0)) / std::sqrt(static_cast<double>(head_dim));
}

/// key(at) and value(at): number `at` of [tokens][kv_heads][dim].
template <class Key, class Value>
void attend(AttentionShape shape, Dev<const float> q, const Key& key, const Value& value,
            const TokenSelection& selection, std::int64_t rows, Dev<float> out) {
  const std::int64_t dim = shape.head_dim;
  const std::int64_t heads_per_kv = shape.heads / shape.kv_heads;
  const double scale = score_scale(dim);
  std::vector<double> p;
  std::vector<double> sum(static_cast<std::size_t>(dim));
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t count = selection.count.address()[r];
    const bool dense = selection.dense && selection.dense.address()[r] != 0;
    const auto token = [&](std::int64_t t) {
      return dense ? t : std::int64_t{selection.tokens.address()[r * selection.stride + t]};
    };
    p.resize(static_cast<std::size_t>(count));
    for (std::int64_t h = 0; h < shape.heads; ++h) {
      const float* query = q.address() + (r * shape.heads + h) * dim;
      const auto at = [&](std::int64_t t) { return (token(t) * shape.kv_heads + h / heads_per_kv) * dim; };
      for (std::int64_t t = 0; t < count; ++t) {
        const std::int64_t from = at(t);
        double dot = 0;
        for (std::int64_t i = 0; i < dim; ++i) dot += query[i] * key(from + i);
        p[static_cast<std::size_t>(t)] = scale * dot;
      }
      softmax_base2(p);
      std::fill(sum.begin(), sum.end(), 0.0);
      for (std::int64_t t = 0; t < count; ++t) {
        const std::int64_t from = at(t);
        const double factor = p[static_cast<std::size_t>(t)];
        for (std::int64_t i = 0; i < dim; ++i) sum[static_cast<std::size_t>(i)] += factor * value(from + i);
      }
      float* to = out.address() + (r * shape.heads + h) * dim;
      for (std::int64_t i = 0; i < dim; ++i) to[i] = static_cast<float>(sum[static_cast<std::size_t>(i)]);
    }
  }
}

}  // namespace

void ScalarBackend::norm_rope(HeadsIn in, Dev<const float> x, Dev<const float> w, float eps, const Rope& rope,
                              std::int64_t rows, Dev<float> out) {
  std::vector<double> head(static_cast<std::size_t>(in.dim));
  std::vector<double> normed;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t h = 0; h < in.heads; ++h) {
      std::copy_n(x.address() + r * in.row_stride + h * in.head_stride, in.dim, head.begin());
      scalar::norm_rope_head(head.data(), w.address(), in.dim, eps, rope, r, normed,
                             out.address() + (r * in.heads + h) * in.dim);
    }
  }
}

void ScalarBackend::attention(AttentionShape shape, Dev<const float> q, Dev<const float> keys,
                              Dev<const float> values, const TokenSelection& selection, std::int64_t rows,
                              Dev<float> out) {
  const auto of = [](Dev<const float> numbers) {
    return [numbers](std::int64_t at) -> double { return numbers.address()[at]; };
  };
  attend(shape, q, of(keys), of(values), selection, rows, out);
}

void ScalarBackend::attention_q8(AttentionShape shape, Dev<const float> q, const KeysValuesQ8& cache,
                                 const TokenSelection& selection, std::int64_t rows, Dev<float> out) {
  const auto of = [](Dev<const std::int8_t> codes, Dev<const std::uint16_t> scales) {
    return [codes, scales](std::int64_t at) -> double {
      return static_cast<double>(codes.address()[at]) * to_float(Half{scales.address()[at / kQ8Group]});
    };
  };
  attend(shape, q, of(cache.keys, cache.key_scales), of(cache.values, cache.value_scales), selection, rows,
         out);
}

void ScalarBackend::quantise_q8(Dev<const float> x, std::int64_t groups, Dev<std::int8_t> codes,
                                Dev<std::uint16_t> scales) {
  for (std::int64_t g = 0; g < groups; ++g) {
    scales.address()[g] =
        scalar::quantise_q8_group(x.address() + g * kQ8Group, codes.address() + g * kQ8Group);
  }
}

void ScalarBackend::attention_gate(HeadsIn in, Dev<const float> gate, std::int64_t rows, Dev<float> out) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t h = 0; h < in.heads; ++h) {
      const float* logit = gate.address() + r * in.row_stride + h * in.head_stride;
      float* to = out.address() + (r * in.heads + h) * in.dim;
      for (std::int64_t i = 0; i < in.dim; ++i) to[i] = static_cast<float>(to[i] * scalar::sigmoid(logit[i]));
    }
  }
}

void ScalarBackend::softmax_selected(Dev<const float> scores, Dev<const std::uint32_t> block_mask,
                                     std::int64_t rows, std::int64_t stride, std::int64_t queries,
                                     std::int64_t base, std::int64_t ratio, std::int64_t mask_words,
                                     Dev<std::uint16_t> out) {
  std::vector<double> p(static_cast<std::size_t>(stride));
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t query = r % queries;
    const std::int64_t visible = base + query + 1;
    const std::int64_t complete = visible / ratio;  // blocks; what follows them is the tail
    const std::uint32_t* mask = block_mask.address() + query * mask_words;
    const auto sees = [&](std::int64_t t) {
      if (t >= visible) return false;
      const std::int64_t block = t / ratio;
      if (block >= complete) return true;
      return block / 32 < mask_words && ((mask[block / 32] >> (block % 32)) & 1U) != 0;
    };
    for (std::int64_t t = 0; t < stride; ++t) {
      // What a row does not see is never read: it may hold anything, NaN included.
      p[static_cast<std::size_t>(t)] =
          sees(t) ? scores.address()[r * stride + t] : -std::numeric_limits<double>::infinity();
    }
    softmax_base2(p);
    for (std::int64_t t = 0; t < stride; ++t) {
      out.address()[r * stride + t] = to_half(static_cast<float>(p[static_cast<std::size_t>(t)])).bits;
    }
  }
}

}  // namespace sluice::backend

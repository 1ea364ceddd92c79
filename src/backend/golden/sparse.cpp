// Sparse attention: the selector, attention over a token list, softmax under a block mask.
#include <algorithm>
#include <cmath>

#include "backend/golden/operations.h"
#include "base/numbers.h"

namespace sluice::backend::golden {

namespace {

/// Rotary tables of `rows` positions first, first + step, ...: angles in float32, as model.md 3.5 says.
Rope rope_tables(GoldenCase& c, std::int64_t dims, float theta, std::int64_t first, std::int64_t step,
                 std::int64_t rows) {
  std::vector<float> cos;
  std::vector<float> sin;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t j = 0; j < dims / 2; ++j) {
      const double exponent = -2.0 * static_cast<double>(j) / static_cast<double>(dims);
      const auto frequency = static_cast<float>(std::pow(static_cast<double>(theta), exponent));
      const float angle = static_cast<float>(first + r * step) * frequency;
      cos.push_back(static_cast<float>(std::cos(static_cast<double>(angle))));
      sin.push_back(static_cast<float>(std::sin(static_cast<double>(angle))));
    }
  }
  return {dims, c.upload(cos), c.upload(sin)};
}

struct Selection {
  Dev<std::uint32_t> tokens, count, mask;
  Dev<std::uint8_t> dense;
};

}  // namespace

void index(GoldenCase& c) {
  const IndexShape shape{c.size("index_heads"), c.size("index_head_dim"), c.size("ratio"),
                         c.size("k_blocks")};
  const std::int64_t dim = shape.head_dim;
  const std::int64_t rotary = c.size("rotary_dims");
  const std::int64_t base = c.size("base_pos");
  const std::int64_t nb = c.size("nb");
  const std::int64_t most_blocks = c.size("max_blocks");
  const std::int64_t words = (most_blocks + 31) / 32;
  const std::int64_t row_width = (shape.heads + 1) * dim;
  const float theta = c.number("theta");
  const float eps = c.number("eps");
  c.require(rotary % 2 == 0 && rotary <= dim, "rotary_dims is odd or larger than a head");
  const auto iqk = c.host<float>("in_iqk", {nb, row_width});
  auto raw_keys = c.host<float>("in_raw_keys", {base, dim});
  const auto q_norm = c.input<float>("in_q_norm", {dim});
  const auto k_norm = c.input<float>("in_k_norm", {dim});
  const auto golden_scores = c.input<float>("out_scores", {nb, most_blocks});
  const std::int64_t token_stride = c.extent("out_visible", 1);
  const auto q = c.output<float>("out_q", {nb, shape.heads, dim});
  const auto block_keys = c.output<float>("out_block_keys", {most_blocks, dim});
  const auto scores = c.output<float>("out_scores", {nb, most_blocks});
  const auto select_memory = [&]() -> Selection {
    return {c.output<std::uint32_t>("out_visible", {nb, token_stride}),
            c.output<std::uint32_t>("out_n_visible", {nb}),
            c.output<std::uint32_t>("out_block_mask", {nb, words}), c.memory<std::uint8_t>(c.ok() ? nb : 0)};
  };
  const Selection from_golden = select_memory();
  const Selection from_own = select_memory();
  if (!c.ok()) return;
  const std::int64_t blocks = (base + nb) / shape.ratio;
  c.require(blocks > shape.block_budget && blocks <= most_blocks, "the rows do not need a selection");
  c.require(token_stride >= (shape.block_budget + 1) * shape.ratio - 1, "out_visible is too narrow");
  if (!c.ok()) return;

  // The rows' own raw keys follow those of the past.
  std::vector<std::uint32_t> visible;
  std::vector<std::uint32_t> row_blocks;
  for (std::int64_t r = 0; r < nb; ++r) {
    const auto key = iqk.begin() + r * row_width + shape.heads * dim;
    raw_keys.insert(raw_keys.end(), key, key + dim);
    visible.push_back(static_cast<std::uint32_t>(base + r + 1));
    row_blocks.push_back(static_cast<std::uint32_t>((base + r + 1) / shape.ratio));
  }
  const auto device_iqk = c.upload(iqk);
  const auto device_keys = c.upload(raw_keys);
  const auto device_visible = c.upload(visible);
  const auto device_blocks = c.upload(row_blocks);
  const Rope query_rope = rope_tables(c, rotary, theta, base, 1, nb);
  const Rope block_rope = rope_tables(c, rotary, theta, 0, shape.ratio, blocks);
  if (!c.ok()) return;

  Backend& backend = c.backend();
  backend.index_block_keys(shape, device_keys, 0, blocks, k_norm, eps, block_rope, block_keys);
  backend.norm_rope({shape.heads, dim, row_width, dim}, device_iqk, q_norm, eps, query_rope, nb, q);
  backend.index_scores(shape, q, block_keys, device_blocks, nb, most_blocks, scores);
  c.expect_close("index_block_keys", "out_block_keys", block_keys, 1e-5);
  c.expect_close("norm_rope", "out_q", q, 1e-5);
  c.expect_close("index_scores", "out_scores", scores, 1e-5);
  // Twice: on the golden scores, and at the end of the backend's own chain.
  const auto select = [&](Dev<const float> from, const Selection& to, std::string_view which) {
    backend.index_select(shape, from, most_blocks, device_visible, nb, to.tokens, token_stride, to.count,
                         to.dense, to.mask, words);
    c.expect_equal("index_select", "out_visible", to.tokens, which);
    c.expect_equal("index_select", "out_n_visible", to.count, which);
    c.expect_equal("index_select", "out_block_mask", to.mask, which);
    const auto dense = c.download(to.dense, static_cast<std::size_t>(nb));
    c.add_exact("index_select", fmt::format("dense{}", which), std::count(dense.begin(), dense.end(), 1));
  };
  select(golden_scores, from_golden, " from golden scores");
  select(scores, from_own, " from own scores");
}

void attention_q8(GoldenCase& c) {
  const AttentionShape shape{c.size("heads"), c.size("kv_heads"), c.size("head_dim")};
  const std::int64_t tokens = c.size("tokens");
  if (!c.ok()) return;
  c.require(shape.heads % shape.kv_heads == 0 && shape.head_dim % 32 == 0,
            "heads that kv_heads does not divide, or a head_dim that 32 does not");
  const Shape codes{tokens, shape.kv_heads, shape.head_dim};
  const Shape scales{tokens, shape.kv_heads * shape.head_dim / 32};
  const auto q = c.input<float>("in_q", {shape.heads, shape.head_dim});
  const KeysValuesQ8 cache{
      c.input<std::int8_t>("in_k_q8", codes), c.input<std::uint16_t>("in_k_scale", scales),
      c.input<std::int8_t>("in_v_q8", codes), c.input<std::uint16_t>("in_v_scale", scales)};
  const std::int64_t count = c.extent("in_visible", 0);
  const auto visible = c.host<std::uint32_t>("in_visible", {count});
  c.require(std::all_of(visible.begin(), visible.end(), [tokens](std::uint32_t t) { return t < tokens; }),
            "in_visible names a token that is not there");
  const auto device_visible = c.upload(visible);
  const auto device_count = c.upload(std::vector<std::uint32_t>{static_cast<std::uint32_t>(count)});
  const auto out = c.output<float>("out_o", {shape.heads, shape.head_dim});
  if (!c.ok()) return;
  c.backend().attention_q8(shape, q, cache, {device_visible, count, device_count, {}, count}, 1, out);
  c.expect_close("attention_q8", "out_o", out, 1e-4);
}

void softmax_selected(GoldenCase& c) {
  const std::int64_t rows = c.size("rows");
  const std::int64_t stride = c.size("kl_pad");
  const std::int64_t base = c.whole("base");
  const std::int64_t queries = c.size("queries");
  const std::int64_t ratio = c.size("ratio");
  const std::int64_t words = c.extent("in_block_mask", 1);
  const auto scores = c.input<float>("in_scores", {rows, stride});
  const auto mask = c.input<std::uint32_t>("in_block_mask", {queries, words});
  const auto p = c.output<std::uint16_t>("out_p", {rows, stride});
  const auto golden = c.host<float>("out_p", {rows, stride});
  c.require(base + queries <= stride, "kl_pad is smaller than the tokens of the last query");
  if (!c.ok()) return;
  c.backend().softmax_selected(scores, mask, rows, stride, queries, base, ratio, words, p);
  std::vector<float> found;
  for (const std::uint16_t bits : c.download(p, golden.size())) found.push_back(to_float(Half{bits}));
  c.expect_close("softmax_selected", "out_p", found, 1e-3);
}

}  // namespace sluice::backend::golden

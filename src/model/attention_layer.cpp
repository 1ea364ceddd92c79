// Full attention and its token selector, QSA (model.md 3.6, 3.7).
#include <algorithm>

#include "model/model.h"

namespace sluice::model {

Result<void> Model::attention_layer(const AttentionWeights& weights, std::int64_t index, Runs runs,
                                    std::int64_t rows) {
  Scratch& s = *scratch_;
  const auto& c = config();
  const std::int64_t dim = c.head_dim;
  const backend::Rope rope{active_rope_->dims(), s.rope_cos, s.rope_sin};
  const backend::Backend::HeadsIn query_heads{c.heads, dim, 2 * c.q_width(), 2 * dim};

  std::vector<backend::Backend::Projection> parts{
      {weights.q, s.query_gate}, {weights.k, s.key}, {weights.v, s.value}};
  if (weights.indexer) {
    parts.push_back({weights.indexer->q, s.index_raw_query});
    parts.push_back({weights.indexer->k, s.index_key});
  }
  backend_.linear_many(parts, s.mixed, rows);
  const std::int64_t half = rope.dims / 2;
  std::vector<backend::Backend::HeadsPart> heads{
      {query_heads, s.query_gate, weights.q_norm, rope, rows, s.query}};
  if (weights.indexer) {
    const auto& shape = *c.indexer;
    const std::int64_t width = shape.heads * shape.head_dim;
    heads.push_back({{shape.heads, shape.head_dim, width, shape.head_dim},
                     s.index_raw_query,
                     weights.indexer->q_norm,
                     rope,
                     rows,
                     s.index_query});
  }
  const backend::Backend::HeadsIn pairs{c.kv_heads, dim, c.kv_width(), dim};
  for (const Run& run : runs) {
    FullCache& cache = index == kMtpLayer ? run.state->mtp() : run.state->full(index);
    const backend::Rope run_rope{rope.dims, rope.cos + run.first * half, rope.sin + run.first * half};
    const std::int64_t from = run.first * c.kv_width();
    const std::int64_t to = run.base * c.kv_width();
    const bool rounds = static_cast<bool>(cache.q8.keys);
    heads.push_back({pairs, s.key + from, weights.k_norm, run_rope, run.rows,
                     rounds ? s.rotated_key + from : cache.keys + to});
    if (!rounds) heads.push_back({pairs, s.value + from, {}, {}, run.rows, cache.values + to});
    if (weights.indexer) {
      // Raw keys are kept until their block is whole.
      const std::int64_t width = c.indexer->head_dim;
      heads.push_back({{1, width, width, width},
                       s.index_key + run.first * width,
                       {},
                       {},
                       run.rows,
                       cache.index_raw + run.base * width});
    }
  }
  backend_.norm_rope_many(heads, c.norm_eps);
  std::int64_t completed = 0;
  for (const Run& run : runs) {
    FullCache& cache = index == kMtpLayer ? run.state->mtp() : run.state->full(index);
    if (cache.q8.keys) append_rounded(cache.q8, run);
    if (weights.indexer) index_append(weights, cache, run, completed);
    SLUICE_TRY(select_and_attend(weights, cache, run));
  }
  backend_.attention_gate(query_heads, s.query_gate + dim, rows, s.attended);
  backend_.linear(weights.o, s.attended, rows, s.sub_out);
  return {};
}

void Model::append_rounded(const backend::KeysValuesQ8& cache, const Run& run) {
  const std::int64_t width = config().kv_width();
  const std::int64_t from = run.first * width;
  const std::int64_t to = run.base * width;
  const std::int64_t groups = run.rows * width / backend::kQ8Group;
  backend_.quantise_q8(scratch_->rotated_key + from, groups, cache.keys + to,
                       cache.key_scales + to / backend::kQ8Group);
  backend_.quantise_q8(scratch_->value + from, groups, cache.values + to,
                       cache.value_scales + to / backend::kQ8Group);
}

// Raw keys are kept; a block's key is made once, when its last token arrives. Blocks of a rejected step are
// made again by the step that completes them. `completed` counts the step's blocks so far.
void Model::index_append(const AttentionWeights& weights, FullCache& cache, const Run& run,
                         std::int64_t& completed) {
  Scratch& s = *scratch_;
  const auto& c = config();
  const auto& indexer = *c.indexer;
  const std::int64_t first = run.base / indexer.ratio;
  const std::int64_t last = (run.base + run.rows) / indexer.ratio;
  if (first == last) return;
  const std::int64_t half = active_rope_->dims() / 2;
  backend_.index_block_keys(
      {indexer.heads, indexer.head_dim, indexer.ratio, indexer.block_budget()}, cache.index_raw, first, last,
      weights.indexer->k_norm, c.norm_eps,
      {active_rope_->dims(), s.block_cos + completed * half, s.block_sin + completed * half},
      cache.index_blocks);
  completed += last - first;
}

Result<void> Model::select_and_attend(const AttentionWeights& weights, FullCache& cache, const Run& run) {
  Scratch& s = *scratch_;
  const auto& c = config();
  const backend::AttentionShape shape{c.heads, c.kv_heads, c.head_dim};
  const auto visible = s.visible + run.first;
  const std::int64_t seen = run.base + run.rows;
  const auto attend = [&](std::int64_t row, std::int64_t rows, const backend::TokenSelection& selection) {
    const auto q = s.query + row * c.q_width();
    const auto out = s.attended + row * c.q_width();
    if (cache.q8.keys) {
      backend_.attention_q8(shape, q, cache.q8, selection, rows, out);
    } else {
      backend_.attention(shape, q, cache.keys, cache.values, selection, rows, out);
    }
  };
  const bool selects =
      weights.indexer && !options_.dense_attention && seen / c.indexer->ratio > c.indexer->block_budget();
  if (!selects) {
    // Within the budget every row attends to all it sees; no list is made.
    attend(run.first, run.rows, {{}, 0, visible, s.all_dense, seen});
    return {};
  }
  const auto& indexer = *c.indexer;
  const backend::IndexShape index{indexer.heads, indexer.head_dim, indexer.ratio, indexer.block_budget()};
  const std::int64_t blocks = seen / indexer.ratio;
  const std::int64_t index_width = indexer.heads * indexer.head_dim;
  const std::int64_t token_stride = indexer.budget + indexer.ratio;
  SLUICE_ASSIGN(const auto scores, s.scores(backend_, blocks));
  for (std::int64_t at = 0; at < run.rows; at += kSelectTile) {
    const std::int64_t tile = std::min(kSelectTile, run.rows - at);
    const std::int64_t row = run.first + at;
    backend_.index_scores(index, s.index_query + row * index_width, cache.index_blocks, s.blocks + row, tile,
                          blocks, scores);
    backend_.index_select(index, scores, blocks, s.visible + row, tile, s.tokens, token_stride, s.count,
                          s.dense, {}, 0);
    attend(row, tile, {s.tokens, token_stride, s.count, s.dense, token_stride});
  }
  return {};
}

}  // namespace sluice::model

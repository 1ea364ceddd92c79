// The hashed n-gram embedding of a layer (model.md 3.10).
#include "model/model.h"

namespace sluice::model {

Result<void> Model::ple(const PleWeights& weights, std::int64_t index, Runs runs, std::int64_t rows,
                        Dev<float> wide) {
  Scratch& s = *scratch_;
  const auto& c = config();
  const auto heads = static_cast<std::size_t>(c.ple->heads());
  std::vector<std::int64_t> table_rows(static_cast<std::size_t>(rows) * heads);
  for (const Run& run : runs) {
    const auto history = run.state->tokens();
    for (std::int64_t r = 0; r < run.rows; ++r) {
      weights.hash.rows_of(
          history.first(static_cast<std::size_t>(run.base + r + 1)),
          std::span(table_rows).subspan(static_cast<std::size_t>(run.first + r) * heads, heads));
    }
  }
  std::vector<float> features(static_cast<std::size_t>(rows * c.ple->embed_dim));
  SLUICE_TRY(source_->read_ngram_rows(index, table_rows, features));
  upload(s.features, std::span<const float>(features));

  const auto shape = wide_shape(rows);
  backend_.linear(weights.key, s.features, rows, s.ple_out);
  backend_.group_norm(shape, s.ple_out, weights.norm_key, 0, c.norm_eps, s.ple_key);
  backend_.linear(weights.value, s.features, rows, s.ple_value);
  backend_.group_norm(shape, wide, weights.norm_query, 0, c.norm_eps, s.ple_query);
  backend_.ple_gate(shape, s.ple_key, s.ple_query, s.ple_value, s.ple_key);
  const Dev<const float> gated = s.ple_key;
  backend_.group_norm(shape, gated, weights.norm_conv, 0, c.norm_eps, s.ple_query);
  for (const Run& run : runs) {
    const std::int64_t at = run.first * c.wide();
    backend_.causal_conv({c.wide(), c.ple->conv_kernel, c.ple->ngram_size}, s.ple_query + at, weights.conv,
                         run.state->ple(index), run.base, run.rows, gated + at, s.ple_out + at);
  }
  backend_.scatter_add_rows(s.ple_out, s.iota, s.ones, rows, c.wide(), wide);
  return {};
}

}  // namespace sluice::model

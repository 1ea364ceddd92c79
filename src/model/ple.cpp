// The hashed n-gram embedding of a layer (model.md 3.10).
#include "model/model.h"

namespace sluice::model {

experts::NgramRows::Options ngram_options(const spec::ModelConfig& config, std::int64_t max_rows) {
  experts::NgramRows::Options options;
  options.rows = max_rows;
  options.heads = config.ple ? config.ple->heads() : 0;
  return options;
}

// Only tokens are needed to know the rows, so reading begins before anything is computed.
Result<experts::NgramRows::Step> Model::start_ngram_rows(Runs runs, std::int64_t rows) {
  if (!config().ple) return experts::NgramRows::Step();
  const auto heads = static_cast<std::size_t>(config().ple->heads());
  return ngram_->start(rows, use_of(rows), [&](std::int64_t layer, std::span<std::int64_t> wanted) {
    const spec::NgramHash& hash = weights_.layers[static_cast<std::size_t>(layer)].ple->hash;
    for (const Run& run : runs) {
      const auto history = run.state->tokens();
      for (std::int64_t r = 0; r < run.rows; ++r) {
        hash.rows_of(history.first(static_cast<std::size_t>(run.base + r + 1)),
                     wanted.subspan(static_cast<std::size_t>(run.first + r) * heads, heads));
      }
    }
  });
}

Result<void> Model::ple(const PleWeights& weights, std::int64_t index, Runs runs, std::int64_t rows,
                        Dev<float> wide) {
  Scratch& s = *scratch_;
  const auto& c = config();
  SLUICE_TRY(ngram_->take(index, [&](std::int64_t first, std::span<const float> values) {
    upload(s.features + first * c.ple->embed_dim, values);
  }));

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

// The MTP head: rows that follow the trunk, and drafts beyond it (model.md section 4).
#include <algorithm>

#include "model/model.h"

namespace sluice::model {

// Rows of the head over s.mtp_hidden (the wide residuals they start from), row r with the token tokens[r].
Result<void> Model::mtp_rows(Runs runs, std::int64_t rows, std::span<const std::int32_t> tokens,
                             std::span<const std::int64_t> sink_rows, const RowsSink& sink) {
  Scratch& s = *scratch_;
  const auto& c = config();
  const auto& w = *weights_.mtp;
  set_positions(mtp_rope_, runs);
  upload(s.ids, tokens);
  backend_.embed_rows(weights_.embed, s.ids, rows, s.embedded);
  backend_.group_norm({rows, 1, c.hidden}, s.embedded, w.norm_embedding, 0, c.norm_eps, s.mtp_embedded);
  backend_.linear(w.fc_embedding, s.mtp_embedded, rows, s.mtp_folded);
  const auto norm_shape = options_.mtp_hidden_norm == MtpHiddenNorm::kGlobal
                              ? backend::WideShape{rows, 1, c.wide()}
                              : wide_shape(rows);
  backend_.group_norm(norm_shape, s.mtp_hidden, w.norm_hidden, 0, c.norm_eps, s.normed);
  // The same projection for each stream: streams are rows of it.
  backend_.linear(w.fc_hidden, s.normed, rows * c.streams, s.gate_wide);
  backend_.mtp_fold(wide_shape(rows), s.mtp_folded, s.gate_wide, s.mtp_wide);
  bool pending = false;
  SLUICE_TRY(layer(w.layer, kMtpLayer, runs, rows, s.mtp_wide, pending));
  if (sink && !sink_rows.empty()) return head(w.mixer, sink_rows, rows, s.mtp_wide, pending, sink);
  flush(rows, s.mtp_wide, pending);
  return {};
}

// After the trunk computed a step: row j of the head needs the wide residual of token j and token j + 1, so a
// step at base b makes rows b - 1 .. b + rows - 2; the first of them starts from the residual kept by the
// last commit.
Result<void> Model::mtp_step(Runs runs, const ForwardOptions& options) {
  Scratch& s = *scratch_;
  const std::int64_t wide = config().wide();
  std::vector<Run> mtp;
  std::vector<std::int32_t> tokens;
  std::vector<std::int64_t> sources;
  std::int64_t rows = 0;
  for (const Run& run : runs) {
    if (!run.state->has_mtp()) continue;
    const std::int64_t skip = run.base == 0 ? 1 : 0;  // no token before the first
    const std::int64_t count = run.rows - skip;
    if (count == 0) continue;
    if (skip == 0) copy_floats(s.mtp_hidden + rows * wide, run.state->wide_slot(0), wide);
    const std::int64_t from_trunk = run.rows - 1;
    copy_floats(s.mtp_hidden + (rows + 1 - skip) * wide, s.wide + run.first * wide, from_trunk * wide);
    mtp.push_back({run.state, rows, count, run.base - 1 + skip});
    for (std::int64_t r = skip; r < run.rows; ++r) {
      tokens.push_back(run.state->tokens()[static_cast<std::size_t>(run.base + r)]);
      sources.push_back(run.first + r);
    }
    rows += count;
  }
  if (rows == 0) return {};
  std::vector<std::int64_t> sink_rows;
  RowsSink sink;
  if (options.on_mtp_logits) {
    for (std::int64_t r = 0; r < rows; ++r) sink_rows.push_back(r);
    sink = [&](std::int64_t first, std::int64_t count, Dev<const float> data) -> Result<void> {
      for (std::int64_t r = 0; r < count; ++r) {
        SLUICE_TRY(options.on_mtp_logits(sources[static_cast<std::size_t>(first + r)], 1,
                                         data + r * config().vocab));
      }
      return {};
    };
  }
  return mtp_rows(mtp, rows, tokens, sink_rows, sink);
}

Result<void> Model::draft(SequenceState& state, std::int32_t token, std::int64_t depth,
                          const RowsSink& sink) {
  Scratch& s = *scratch_;
  if (!has_mtp() || !state.has_mtp()) {
    return make_error(ErrorCode::kUnsupported, "draft: this model or sequence has no MTP head");
  }
  const std::int64_t row = state.length() - 1 + depth;
  if (state.pending() != 0 || state.length() == 0 || row >= state.context()) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "draft {} after {} tokens ({} pending): needed a committed sequence within its context of {}", depth,
        state.length(), state.pending(), state.context());
  }
  if (depth != 0 && depth != state.drafted()) {
    return make_error(ErrorCode::kInvalidArgument, "draft {}: needed 0 or {}, the next in the chain", depth,
                      state.drafted());
  }
  if (token < 0 || token >= config().vocab) {
    return make_error(ErrorCode::kInvalidArgument, "token {}: needed 0 to {}", token, config().vocab - 1);
  }
  // A chained row starts from the head's own wide residual.
  copy_floats(s.mtp_hidden, state.wide_slot(depth == 0 ? 0 : state.draft_slot()), config().wide());
  const Run run{&state, 0, 1, row};
  const std::int64_t zero = 0;
  SLUICE_TRY(mtp_rows(std::span(&run, 1), 1, std::span(&token, 1), std::span(&zero, 1), sink));
  SLUICE_TRY(backend_.status());
  copy_floats(state.wide_slot(state.draft_slot()), s.mtp_wide, config().wide());
  state.set_drafted(depth + 1);
  return {};
}

}  // namespace sluice::model

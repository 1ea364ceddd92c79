#include "model/scratch.h"

#include <algorithm>
#include <numeric>

namespace sluice::model {

template <class T>
Result<void> Scratch::take(backend::Backend& backend, Dev<T>& out, std::int64_t elements) {
  SLUICE_ASSIGN(auto buffer, backend.allocate(static_cast<std::size_t>(elements) * sizeof(T)));
  bytes_ += static_cast<std::uint64_t>(elements) * sizeof(T);
  out = buffer->template as<T>();
  buffers_.push_back(std::move(buffer));
  return {};
}

Result<std::unique_ptr<Scratch>> Scratch::create(const spec::ModelConfig& config, std::int64_t max_rows,
                                                 bool mtp, backend::Backend& backend) {
  auto scratch = std::make_unique<Scratch>();
  Scratch& s = *scratch;
  const std::int64_t rows = max_rows;
  const std::int64_t half = config.rope.rotary_dims / 2;
  const auto take = [&](auto& out, std::int64_t count) { return s.take(backend, out, count); };

  SLUICE_TRY(take(s.ids, rows));
  SLUICE_TRY(take(s.rope_cos, rows * half));
  SLUICE_TRY(take(s.rope_sin, rows * half));
  SLUICE_TRY(take(s.iota, rows));
  SLUICE_TRY(take(s.ones, rows));
  SLUICE_TRY(take(s.all_dense, rows));
  std::vector<std::uint32_t> iota(static_cast<std::size_t>(rows));
  std::iota(iota.begin(), iota.end(), 0U);
  const std::vector<float> ones(static_cast<std::size_t>(rows), 1.0F);
  const auto upload = [&](auto to, const auto& from) {
    backend.upload(Dev(reinterpret_cast<std::byte*>(to.address())), std::as_bytes(std::span(from)));
  };
  upload(s.iota, iota);
  upload(s.ones, ones);
  upload(s.all_dense, std::vector<std::uint8_t>(static_cast<std::size_t>(rows), 1));

  SLUICE_TRY(take(s.embedded, rows * config.hidden));
  for (auto* wide : {&s.wide, &s.normed, &s.gate_wide}) SLUICE_TRY(take(*wide, rows * config.wide()));
  SLUICE_TRY(take(s.low, rows * config.hc_lowrank));
  SLUICE_TRY(take(s.mixed, rows * config.hidden));
  SLUICE_TRY(take(s.inject_gate, rows * config.streams));
  SLUICE_TRY(take(s.sub_out, rows * config.hidden));

  for (auto* qkv : {&s.qkv, &s.conv_out}) SLUICE_TRY(take(*qkv, rows * config.linear_conv_width()));
  for (auto* v : {&s.z, &s.delta_y, &s.delta_out}) SLUICE_TRY(take(*v, rows * config.linear_v_width()));
  for (auto* v : {&s.a, &s.b, &s.decay, &s.beta}) SLUICE_TRY(take(*v, rows * config.linear_value_heads));

  SLUICE_TRY(take(s.query_gate, rows * 2 * config.q_width()));
  for (auto* q : {&s.query, &s.attended}) SLUICE_TRY(take(*q, rows * config.q_width()));
  for (auto* kv : {&s.key, &s.value}) SLUICE_TRY(take(*kv, rows * config.kv_width()));
  for (auto* v : {&s.visible, &s.blocks, &s.count}) SLUICE_TRY(take(*v, rows));
  if (config.indexer) {
    const auto& indexer = *config.indexer;
    for (auto* table : {&s.block_cos, &s.block_sin})
      SLUICE_TRY(take(*table, (rows / indexer.ratio + 2) * half));
    for (auto* q : {&s.index_query, &s.index_raw_query}) {
      SLUICE_TRY(take(*q, rows * indexer.heads * indexer.head_dim));
    }
    SLUICE_TRY(take(s.index_key, rows * indexer.head_dim));
    SLUICE_TRY(take(s.dense, kSelectTile));
    SLUICE_TRY(take(s.tokens, kSelectTile * (indexer.budget + indexer.ratio)));
  }

  const std::int64_t k = config.experts_per_token;
  const std::int64_t entries = std::min(config.experts, rows * k);
  SLUICE_TRY(take(s.router_logits, rows * config.experts));
  SLUICE_TRY(take(s.router_index, rows * k));
  for (auto* w : {&s.router_weight, &s.slot_weight}) SLUICE_TRY(take(*w, rows * k));
  SLUICE_TRY(take(s.entries, entries));
  SLUICE_TRY(take(s.entry_begin, entries + 1));
  for (auto* pair : {&s.pair_row, &s.pair_slot}) SLUICE_TRY(take(*pair, rows * k));
  SLUICE_TRY(take(s.expert_out, rows * k * config.hidden));
  for (auto* v : {&s.shared_gate, &s.shared_up}) SLUICE_TRY(take(*v, rows * config.shared_inter));
  SLUICE_TRY(take(s.shared_out, rows * config.hidden));
  SLUICE_TRY(take(s.shared_weight, rows));

  if (config.ple) {
    SLUICE_TRY(take(s.features, rows * config.ple->embed_dim));
    for (auto* w : {&s.ple_key, &s.ple_query, &s.ple_out}) SLUICE_TRY(take(*w, rows * config.wide()));
    SLUICE_TRY(take(s.ple_value, rows * config.hidden));
  }
  if (mtp) {
    for (auto* v : {&s.mtp_embedded, &s.mtp_folded}) SLUICE_TRY(take(*v, rows * config.hidden));
    for (auto* w : {&s.mtp_hidden, &s.mtp_wide}) SLUICE_TRY(take(*w, rows * config.wide()));
  }
  SLUICE_TRY(take(s.logits, std::min(kLogitTile, rows) * config.vocab));
  return scratch;
}

Result<Dev<float>> Scratch::scores(backend::Backend& backend, std::int64_t most_blocks) {
  if (most_blocks > score_blocks_) {
    // Grown in large steps: a long generation asks for one block more every few tokens.
    const std::int64_t room = std::max<std::int64_t>(most_blocks + most_blocks / 2, 1024);
    SLUICE_ASSIGN(scores_, backend.allocate(static_cast<std::size_t>(kSelectTile * room) * sizeof(float)));
    score_blocks_ = room;
  }
  return scores_->as<float>();
}

}  // namespace sluice::model

#include "model/scratch.h"

#include <algorithm>
#include <cassert>
#include <numeric>

#include "model/sequence_state.h"

namespace sluice::model {

// The one list of what there is: create() allocates it, cost() adds it up.
template <class Take>
Result<void> Scratch::each(Scratch& s, const spec::ModelConfig& config, std::int64_t rows, bool mtp,
                           const Take& take) {
  const std::int64_t half = config.rope.rotary_dims / 2;
  SLUICE_TRY(take(s.ids, rows));
  SLUICE_TRY(take(s.rope_cos, rows * half));
  SLUICE_TRY(take(s.rope_sin, rows * half));
  SLUICE_TRY(take(s.iota, rows));
  SLUICE_TRY(take(s.ones, rows));
  SLUICE_TRY(take(s.all_dense, rows));

  SLUICE_TRY(take(s.embedded, rows * config.hidden));
  for (auto* wide : {&s.wide, &s.normed, &s.gate_wide}) SLUICE_TRY(take(*wide, rows * config.wide()));
  SLUICE_TRY(take(s.low, rows * config.hc_lowrank));
  SLUICE_TRY(take(s.mixed, rows * config.hidden));
  for (auto* gate : {&s.inject_gate, &s.next_inject_gate}) SLUICE_TRY(take(*gate, rows * config.streams));
  SLUICE_TRY(take(s.sub_out, rows * config.hidden));

  for (auto* qkv : {&s.qkv, &s.conv_out}) SLUICE_TRY(take(*qkv, rows * config.linear_conv_width()));
  for (auto* v : {&s.z, &s.delta_y, &s.delta_out}) SLUICE_TRY(take(*v, rows * config.linear_v_width()));
  for (auto* v : {&s.a, &s.b, &s.decay, &s.beta}) SLUICE_TRY(take(*v, rows * config.linear_value_heads));

  SLUICE_TRY(take(s.query_gate, rows * 2 * config.q_width()));
  for (auto* q : {&s.query, &s.attended}) SLUICE_TRY(take(*q, rows * config.q_width()));
  for (auto* kv : {&s.key, &s.value, &s.rotated_key}) SLUICE_TRY(take(*kv, rows * config.kv_width()));
  for (auto* v : {&s.visible, &s.blocks, &s.count}) SLUICE_TRY(take(*v, rows));
  if (config.indexer) {
    const auto& indexer = *config.indexer;
    for (auto* table : {&s.block_cos, &s.block_sin})
      SLUICE_TRY(take(*table, (rows / indexer.ratio + rows) * half));
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

  const std::int64_t ahead = std::min(rows, kStepRows);
  for (auto* wide : {&s.ahead_normed, &s.ahead_gate}) SLUICE_TRY(take(*wide, ahead * config.wide()));
  SLUICE_TRY(take(s.ahead_low, ahead * config.hc_lowrank));
  SLUICE_TRY(take(s.ahead_mixed, ahead * config.hidden));

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
  return {};
}

Result<std::unique_ptr<Scratch>> Scratch::create(const spec::ModelConfig& config, std::int64_t max_rows,
                                                 bool mtp, backend::Backend& backend) {
  auto scratch = std::make_unique<Scratch>();
  Scratch& s = *scratch;
  SLUICE_TRY(each(s, config, max_rows, mtp, [&]<class T>(Dev<T>& out, std::int64_t count) -> Result<void> {
    SLUICE_ASSIGN(auto buffer, backend.allocate(static_cast<std::size_t>(count) * sizeof(T)));
    out = buffer->template as<T>();
    s.bytes_ += buffer->size();
    s.buffers_.push_back(std::move(buffer));
    return {};
  }));
  const auto rows = static_cast<std::size_t>(max_rows);
  std::vector<std::uint32_t> iota(rows);
  std::iota(iota.begin(), iota.end(), 0U);
  const auto upload = [&](auto to, const auto& from) {
    backend.upload(Dev(reinterpret_cast<std::byte*>(to.address())), std::as_bytes(std::span(from)));
  };
  upload(s.iota, iota);
  upload(s.ones, std::vector<float>(rows, 1.0F));
  upload(s.all_dense, std::vector<std::uint8_t>(rows, 1));
  return scratch;
}

std::uint64_t Scratch::cost(const spec::ModelConfig& config, std::int64_t max_rows, bool mtp) {
  std::uint64_t bytes = 0;
  Scratch none;
  [[maybe_unused]] const auto added =
      each(none, config, max_rows, mtp, [&]<class T>(Dev<T>&, std::int64_t count) {
        bytes += static_cast<std::uint64_t>(count) * sizeof(T);
        return Result<void>{};
      });
  assert(added.ok());
  return bytes;
}

std::int64_t Scratch::score_room(std::int64_t most_blocks) {
  return std::max<std::int64_t>(most_blocks + most_blocks / 2, 1024);
}

std::uint64_t Scratch::scores_cost(const spec::ModelConfig& config, std::int64_t context) {
  if (!config.indexer) return 0;
  return static_cast<std::uint64_t>(kSelectTile * score_room(context / config.indexer->ratio)) *
         sizeof(float);
}

Result<Dev<float>> Scratch::scores(backend::Backend& backend, std::int64_t most_blocks) {
  if (!scores_ || most_blocks > score_blocks_) {
    // Grown in large steps: a long generation asks for one block more every few tokens.
    const std::int64_t room = score_room(most_blocks);
    scores_.reset();
    score_blocks_ = 0;
    SLUICE_ASSIGN(scores_, backend.allocate(static_cast<std::size_t>(kSelectTile * room) * sizeof(float)));
    score_blocks_ = room;
  }
  return scores_->as<float>();
}

}  // namespace sluice::model

// Working memory of a step, sized once for the largest step.
#pragma once

#include <memory>
#include <vector>

#include "backend/backend.h"
#include "spec/config.h"

namespace sluice::model {

using backend::Dev;

/// Rows of a selection tile: bounds the memory for block scores to kSelectTile x blocks, whatever the chunk.
constexpr std::int64_t kSelectTile = 256;
/// Rows of logits computed at once.
constexpr std::int64_t kLogitTile = 32;

/// R is the most rows a step may have.
struct Scratch {
  Dev<std::int32_t> ids;          // [R]
  Dev<float> rope_cos, rope_sin;  // [R][Dr / 2], positions of the rows
  Dev<float> block_cos,
      block_sin;            // [R / ratio + R][Dr / 2], first positions of the blocks that a step completes
  Dev<std::uint32_t> iota;  // [R] 0, 1, 2 ...
  Dev<float> ones;          // [R]
  Dev<std::uint8_t> all_dense;  // [R] 1: every row attends to all it sees

  Dev<float> embedded;           // [R][H]
  Dev<float> wide;               // [R][W]
  Dev<float> normed, gate_wide;  // [R][W]
  Dev<float> low;                // [R][hc_lowrank]
  Dev<float> mixed;              // [R][H]
  Dev<float> inject_gate;        // [R][C] of the last read
  Dev<float> next_inject_gate;   // [R][C] for the next
  Dev<float> sub_out;            // [R][H]

  Dev<float> qkv, conv_out;          // [R][2 Gk dk + Gv dv]
  Dev<float> z, delta_y, delta_out;  // [R][Gv dv]
  Dev<float> a, b, decay, beta;      // [R][Gv]

  Dev<float> query_gate;                      // [R][Nq 2 D]
  Dev<float> query, attended;                 // [R][Nq D]
  Dev<float> key, value;                      // [R][Nk D]
  Dev<float> rotated_key;                     // [R][Nk D], on the way to 8 bits
  Dev<float> index_query;                     // [R][Ni Di]
  Dev<float> index_raw_query;                 // [R][Ni Di]
  Dev<float> index_key;                       // [R][Di]
  Dev<std::uint32_t> visible, blocks, count;  // [R]
  Dev<std::uint8_t> dense;                    // [kSelectTile]
  Dev<std::uint32_t> tokens;                  // [kSelectTile][budget + ratio]

  Dev<float> router_logits;                // [R][E]
  Dev<std::uint32_t> router_index;         // [R][k]
  Dev<float> router_weight, slot_weight;   // [R][k]
  Dev<backend::ExpertEntry> entries;       // [min(E, R k)]
  Dev<std::uint32_t> entry_begin;          // [min(E, R k) + 1]
  Dev<std::uint32_t> pair_row, pair_slot;  // [R k]
  Dev<float> expert_out;                   // [R][k][H]
  Dev<float> shared_gate, shared_up;       // [R][Fs]
  Dev<float> shared_out;                   // [R][H]
  Dev<float> shared_weight;                // [R]

  // A guess at the next layer's experts, of decode steps only: A is min(R, kStepRows).
  Dev<float> ahead_normed, ahead_gate;  // [A][W]
  Dev<float> ahead_low;                 // [A][hc_lowrank]
  Dev<float> ahead_mixed;               // [A][H]

  Dev<float> features;                     // [R][embed]
  Dev<float> ple_key, ple_query, ple_out;  // [R][W]
  Dev<float> ple_value;                    // [R][H]

  Dev<float> mtp_embedded, mtp_folded;  // [R][H]
  Dev<float> mtp_hidden, mtp_wide;      // [R][W]

  Dev<float> logits;  // [kLogitTile][Vc]

  /// Block scores [kSelectTile][blocks]; grows with the longest context seen.
  Result<Dev<float>> scores(backend::Backend& backend, std::int64_t most_blocks);

  static Result<std::unique_ptr<Scratch>> create(const spec::ModelConfig& config, std::int64_t max_rows,
                                                 bool mtp, backend::Backend& backend);
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  /// Bytes that create() would take, and that scores() takes at most beside them once sequences are `context`
  /// tokens long.
  static std::uint64_t cost(const spec::ModelConfig& config, std::int64_t max_rows, bool mtp);
  static std::uint64_t scores_cost(const spec::ModelConfig& config, std::int64_t context);
  [[nodiscard]] std::uint64_t scores_bytes() const { return scores_ ? scores_->size() : 0; }

 private:
  template <class Take>
  static Result<void> each(Scratch& s, const spec::ModelConfig& config, std::int64_t rows, bool mtp,
                           const Take& take);
  static std::int64_t score_room(std::int64_t most_blocks);

  std::vector<std::unique_ptr<backend::Buffer>> buffers_;
  std::unique_ptr<backend::Buffer> scores_;
  std::int64_t score_blocks_ = 0;
  std::uint64_t bytes_ = 0;
};

}  // namespace sluice::model

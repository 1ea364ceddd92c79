// Everything one sequence remembers, moved only as a whole (model.md section 5).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "spec/config.h"

namespace sluice::model {

using backend::Dev;

/// Rows of a decode step at most: a token and its drafts, or tokens of several sequences. More is a prefill.
constexpr std::int64_t kStepRows = 8;

/// How keys and values are kept (Backend::quantise_q8).
enum class KvFormat { kF32, kQ8 };

struct StateOptions {
  std::int64_t context = 0;            // tokens it can hold
  std::int64_t step_rows = kStepRows;  // a step of at most this many rows can be committed in part
  bool mtp = false;                    // keep the MTP head's cache too
  KvFormat kv = KvFormat::kF32;
};

/// Whether a model's keys and values can be kept so.
Result<void> check_kv(const spec::ModelConfig& config, KvFormat kv);

/// Caches of one full-attention layer: a row a token.
struct FullCache {
  Dev<float> keys, values;   // [context][Nk D], after norm and rotation; null where
  backend::KeysValuesQ8 q8;  // they are kept like this
  Dev<float> index_raw;      // [context][Di], before norm and rotation; null without an indexer
  Dev<float> index_blocks;   // [context / ratio][Di], pooled, normed and rotated
};

/// What a linear layer carries from token to token.
struct DeltaState {
  Dev<float>
      state[2];  // [Gv][dk][dv]: committed, and after the pending step (SequenceState::current says which)
  backend::Ring conv;   // raw in_proj_qkv columns
  Dev<float> step_qkv;  // [step_rows][channels]: the pending step's inputs, to replay a part of it
  Dev<float> step_decay, step_beta;  // [step_rows][Gv]
};

/// The recurrent parts at one length: enough, with the caches below that length, to continue from there.
struct Checkpoint {
  std::int64_t length = 0;
  std::vector<std::int32_t> tokens;
  std::vector<std::byte> recurrent;
};

/// One timeline. A step is begun with its tokens, computed by the model, and then committed, wholly or up to
/// some row, or rolled back; nothing of it is visible in the committed state before.
class SequenceState {
 public:
  static Result<std::unique_ptr<SequenceState>> create(const spec::ModelConfig& config,
                                                       backend::Backend& backend,
                                                       const StateOptions& options);
  /// Bytes of a state with these options: what create() takes from the backend, and the tokens. At most
  /// 2^60.
  static std::uint64_t bytes(const spec::ModelConfig& config, const StateOptions& options);
  /// The same as a fixed part and one for each token of context, options.context set aside.
  struct Cost {
    std::uint64_t fixed = 0;
    std::uint64_t per_token = 0;
  };
  static Cost cost(const spec::ModelConfig& config, StateOptions options);
  /// Bytes taken from the backend.
  [[nodiscard]] std::uint64_t allocated() const;

  [[nodiscard]] std::int64_t length() const { return length_; }  // committed tokens
  [[nodiscard]] std::int64_t pending() const { return static_cast<std::int64_t>(tokens_.size()) - length_; }
  [[nodiscard]] std::int64_t context() const { return options_.context; }
  [[nodiscard]] std::int64_t step_rows() const { return options_.step_rows; }
  [[nodiscard]] bool has_mtp() const { return options_.mtp; }
  /// Committed tokens, then pending ones.
  [[nodiscard]] std::span<const std::int32_t> tokens() const { return tokens_; }

  /// Starts a step. Fails when one is pending already or the context cannot hold it.
  Result<void> begin(std::span<const std::int32_t> tokens);
  /// Keeps the first `rows` rows of the pending step. Fewer than all only when the step has at most
  /// step_rows.
  Result<void> commit(std::int64_t rows);
  /// Forgets the pending step.
  void rollback();
  /// Back to an empty sequence.
  void reset();

  [[nodiscard]] Checkpoint checkpoint();
  /// Back to a checkpoint of this timeline, made with the same model and options: its tokens must be a prefix
  /// of the committed ones. A pending step is forgotten, unless the checkpoint is refused.
  Result<void> restore(const Checkpoint& checkpoint);

  /// The whole committed state as bytes, and back into a state of the same geometry and options.
  std::vector<std::byte> serialize();
  Result<void> deserialize(std::span<const std::byte> bytes);

  // --- for the model ---
  [[nodiscard]] FullCache& full(std::int64_t layer) { return full_[static_cast<std::size_t>(layer)]; }
  [[nodiscard]] DeltaState& delta(std::int64_t layer) { return delta_[static_cast<std::size_t>(layer)]; }
  [[nodiscard]] backend::Ring& ple(std::int64_t layer) { return ple_[static_cast<std::size_t>(layer)]; }
  [[nodiscard]] FullCache& mtp() { return mtp_; }
  [[nodiscard]] int current() const { return current_; }
  /// Wide residuals after the last layer: slot 0 of the last committed token, slot 1 + i of row i of the
  /// pending step (of its last row in slot 1 when the step is longer than step_rows).
  /// Slot draft_slot() is the head's own after the last draft, from which the next one is chained.
  /// How many drafts have been chained since the last step.
  [[nodiscard]] std::int64_t drafted() const { return drafted_; }
  void set_drafted(std::int64_t count) { drafted_ = count; }
  [[nodiscard]] std::int64_t draft_slot() const { return options_.step_rows + 1; }
  [[nodiscard]] Dev<float> wide_slot(std::int64_t slot) const { return wide_ + slot * wide_width_; }

 private:
  SequenceState(const spec::ModelConfig& config, backend::Backend* backend, const StateOptions& options)
      : config_(config), backend_(backend), options_(options), wide_width_(config.wide()) {}

  struct Part {
    Dev<std::byte> data;
    std::size_t bytes = 0;
  };
  template <class Take>
  Result<void> each(const Take& take);
  Result<void> allocate(backend::Backend& backend);
  std::vector<Part> rings() const;
  std::vector<Part> recurrent_parts() const;
  std::vector<Part> token_parts(std::int64_t length) const;
  [[nodiscard]] std::uint64_t geometry() const;
  void write_parts(const std::vector<Part>& parts, std::vector<std::byte>& to);
  void read_parts(const std::vector<Part>& parts, std::span<const std::byte>& from);

  spec::ModelConfig config_;
  backend::Backend* backend_;  // null only while bytes() adds up
  StateOptions options_;
  std::int64_t wide_width_ = 0;
  std::int64_t length_ = 0;
  std::vector<std::int32_t> tokens_;
  int current_ = 0;
  std::int64_t drafted_ = 0;
  std::vector<FullCache> full_;     // by trunk layer; empty entries on linear layers
  std::vector<DeltaState> delta_;   // by trunk layer
  std::vector<backend::Ring> ple_;  // by trunk layer
  FullCache mtp_;
  Dev<float> wide_;
  Dev<std::byte> ring_backup_;
  std::vector<std::unique_ptr<backend::Buffer>> buffers_;
};

}  // namespace sluice::model

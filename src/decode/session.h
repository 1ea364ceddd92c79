// One sequence being prefilled and decoded.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "model/model.h"

namespace sluice::decode {

/// Called during a prefill with tokens done and in all; false cancels at the next chunk.
using PrefillProgress = std::function<bool(std::int64_t done, std::int64_t total)>;

class Session {
 public:
  /// A sequence with room for `context` tokens.
  static Result<std::unique_ptr<Session>> create(model::Model& model, std::int64_t context);

  /// Appends tokens, in chunks of at most `chunk` rows (0: the model's largest). The logits after the last
  /// one are then in logits(). An empty list is an error, as is one that the context cannot hold; nothing is
  /// appended then.
  Result<void> prefill(std::span<const std::int32_t> tokens, std::int64_t chunk = 0,
                       const PrefillProgress& progress = {});

  /// Appends one token; its logits are then in logits().
  Result<void> step(std::int32_t token);

  /// Float32 logits [Vc] of the last token.
  [[nodiscard]] std::span<const float> logits() const { return logits_; }
  [[nodiscard]] model::SequenceState& state() { return *state_; }
  [[nodiscard]] model::Model& model() { return model_; }
  [[nodiscard]] std::int64_t length() const { return state_->length(); }
  void reset() { state_->reset(); }

 private:
  Session(model::Model& model, std::unique_ptr<model::SequenceState> state)
      : model_(model), state_(std::move(state)), logits_(static_cast<std::size_t>(model.config().vocab)) {}
  Result<void> advance(std::span<const std::int32_t> tokens, bool wants_logits);

  model::Model& model_;
  std::unique_ptr<model::SequenceState> state_;
  std::vector<float> logits_;
};

}  // namespace sluice::decode

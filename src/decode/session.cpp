#include "decode/session.h"

#include <algorithm>

namespace sluice::decode {

Result<std::unique_ptr<Session>> Session::create(model::Model& model, std::int64_t context) {
  SLUICE_ASSIGN(auto state, model.new_state(context));
  return std::unique_ptr<Session>(new Session(model, std::move(state)));
}

Result<void> Session::advance(std::span<const std::int32_t> tokens, bool wants_logits) {
  const model::Segment segment{state_.get(), tokens};
  model::ForwardOptions options;
  options.logits = wants_logits ? model::ForwardOptions::Logits::kLast : model::ForwardOptions::Logits::kNone;
  options.on_logits = [this](std::int64_t, std::int64_t, model::Dev<const float> data) -> Result<void> {
    model_.backend().download(std::as_writable_bytes(std::span(logits_)),
                              model::Dev(reinterpret_cast<const std::byte*>(data.address())));
    return {};
  };
  SLUICE_TRY(model_.forward(std::span(&segment, 1), options));
  return state_->commit(static_cast<std::int64_t>(tokens.size()));
}

Result<void> Session::prefill(std::span<const std::int32_t> tokens, std::int64_t chunk,
                              const PrefillProgress& progress) {
  const auto total = static_cast<std::int64_t>(tokens.size());
  if (total == 0) return make_error(ErrorCode::kInvalidArgument, "empty prompt: needed at least one token");
  if (total > state_->context() - state_->length()) {
    return make_error(ErrorCode::kLimit,
                      "prompt of {} tokens after {}: the context holds {}; a larger --ctx is needed", total,
                      state_->length(), state_->context());
  }
  const std::int64_t step = chunk > 0 ? std::min(chunk, model_.max_rows()) : model_.max_rows();
  for (std::int64_t at = 0; at < total; at += step) {
    const std::int64_t rows = std::min(step, total - at);
    SLUICE_TRY(advance(tokens.subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(rows)),
                       at + rows == total));
    if (progress && !progress(at + rows, total)) {
      return make_error(ErrorCode::kCancelled, "cancelled after {} of {} prompt tokens", at + rows, total);
    }
  }
  return {};
}

Result<void> Session::step(std::int32_t token) {
  return advance(std::span(&token, 1), true);
}

}  // namespace sluice::decode

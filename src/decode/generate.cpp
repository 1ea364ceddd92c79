#include "decode/generate.h"

#include <algorithm>

namespace sluice::decode {

Result<GenerateResult> generate(Session& session, Sampler& sampler, const GenerateOptions& options,
                                const TokenSink& sink) {
  GenerateResult result;
  while (result.tokens < options.max_tokens) {
    SLUICE_ASSIGN(const std::int32_t token, sampler.sample(session.logits(), options.vocab_limit));
    ++result.tokens;
    const bool goes_on = !sink || sink(token);
    if (std::find(options.stop_tokens.begin(), options.stop_tokens.end(), token) !=
        options.stop_tokens.end()) {
      result.reason = StopReason::kStopToken;
      return result;
    }
    if (!goes_on) {
      result.reason = StopReason::kCancelled;
      return result;
    }
    if (result.tokens == options.max_tokens || session.length() == session.state().context()) break;
    SLUICE_TRY(session.step(token));
  }
  result.reason = StopReason::kLength;
  return result;
}

}  // namespace sluice::decode

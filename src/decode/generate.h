// The decoding loop: sample, report, step.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "decode/sampler.h"
#include "decode/session.h"

namespace sluice::decode {

enum class StopReason { kStopToken, kLength, kCancelled };

struct GenerateOptions {
  std::int64_t max_tokens = 1024;
  std::vector<std::int32_t> stop_tokens;
  /// Ids that may be chosen: the first `vocab_limit`.
  std::size_t vocab_limit = SIZE_MAX;
};

struct GenerateResult {
  StopReason reason = StopReason::kLength;
  std::int64_t tokens = 0;  // generated, the stop token included
};

/// Called with each token as it is chosen (the stop token included); false ends the generation.
using TokenSink = std::function<bool(std::int32_t token)>;

/// Continues a prefilled session until a stop token, max_tokens, the end of the context or the sink's
/// refusal. The last token chosen is not fed back: the session stays ready for more text after it.
Result<GenerateResult> generate(Session& session, Sampler& sampler, const GenerateOptions& options,
                                const TokenSink& sink);

}  // namespace sluice::decode

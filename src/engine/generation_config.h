// generation_config.json: how the model's authors would sample.
#pragma once

#include <filesystem>
#include <vector>

#include "base/json.h"
#include "decode/sampler.h"

namespace sluice::engine {

struct GenerationConfig {
  decode::SamplingParams sampling;
  std::vector<std::int32_t> stop_tokens;
};

/// Reads `folder`/generation_config.json. Without the file: greedy, stopping at `eos` where there is one.
/// Values of a wrong type or out of range are errors that name them.
Result<GenerationConfig> load_generation_config(const std::filesystem::path& folder,
                                                std::optional<std::int64_t> eos);

/// The same from its JSON.
Result<GenerationConfig> parse_generation_config(const Json& root, std::string_view what,
                                                 std::optional<std::int64_t> eos);

}  // namespace sluice::engine

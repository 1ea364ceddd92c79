// Every position's logits of a token list, for comparison with other implementations.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/model.h"

namespace sluice::decode {

struct LogitsRunOptions {
  std::int64_t chunk = 0;  // prefill chunk; 0: the model's largest
  std::int64_t rows = 0;   // not 0: decode in steps of this many rows (1..8) instead
  bool wide = false;       // keep the wide residual after each layer
  bool mtp = false;        // the head's logits for every position but the last
};

struct LogitsRun {
  std::vector<float> logits;             // [T][Vc]
  std::vector<std::vector<float>> wide;  // [L] of [T][W]
  std::vector<float> mtp_logits;         // [T - 1][Vc]
};

/// Fails for empty or too many ids, ids out of range, and options the model cannot serve.
Result<LogitsRun> run_logits(model::Model& model, std::span<const std::int32_t> ids,
                             const LogitsRunOptions& options);

}  // namespace sluice::decode

// sluice bench MODEL: how fast a model reads prompts and decodes, and what the drive allows.
#pragma once

#include <cstdint>
#include <vector>

#include "command.h"

namespace sluice::cli {

struct BenchModelOptions {
  ModelOptions model;
  std::vector<std::int64_t> prefill;  // tokens of prompts
  std::int64_t decode = 0;            // tokens
  std::uint64_t seed = 1;
  bool json = false;
};

Result<void> bench_model(BenchModelOptions& options);

}  // namespace sluice::cli

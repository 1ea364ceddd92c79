// sluice bench MODEL: how fast a model reads prompts and decodes, and what the drive allows.
#pragma once

#include <cstdint>
#include <vector>

#include "bench_roofline.h"
#include "command.h"
#include "stats_options.h"

namespace sluice::cli {

struct BenchModelOptions {
  ModelOptions model;
  std::vector<std::int64_t> prefill;  // tokens of prompts
  std::int64_t decode = 0;            // tokens
  /// Steps at depths that are made, not read, with several rows, beside the machine's limits: instead of a
  /// session.
  RooflineOptions steps;
  bool same_experts = false;
  std::int64_t chunk = 2048;
  std::uint64_t seed = 1;
  [[nodiscard]] bool by_steps() const {
    return steps.roofline || !steps.depth.empty() || !steps.rows.empty();
  }
  StatisticsOptions statistics;
  bool json = false;
};

Result<void> bench_model(BenchModelOptions& options);

}  // namespace sluice::cli

// sluice bench MODEL --roofline, --depth or --rows: steps of a model beside what the machine gives.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/json.h"
#include "bench_steps.h"

namespace sluice::cli {

struct RooflineOptions {
  bool roofline = false;            // measure the machine too
  std::vector<std::int64_t> depth;  // tokens before decoding
  std::vector<std::int64_t> rows;   // of a decode step
  std::int64_t repeat = 5;          // of a prompt
  /// Bytes a second that the drive gives for records, with nothing else to do; none: all are in memory.
  std::function<Result<double>()> drive;
};

/// Prompts of `prompts` tokens, then decode steps at every depth with every number of rows: medians and
/// spread, and with `roofline` how near they come to the machine's limits. Writes a table unless `json`.
Result<Json> measure_steps(model::Model& model, const RooflineOptions& options, const StepBenchOptions& steps,
                           const std::vector<std::int64_t>& prompts, std::int64_t record_bytes, int threads,
                           bool json);

}  // namespace sluice::cli

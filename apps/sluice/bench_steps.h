// Timed steps of a model: prompts read, and tokens decoded at a depth that is made, not read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "backend/cpu/machine_meter.h"
#include "experts/statistics.h"
#include "model/model.h"

namespace sluice::cli {

struct StepTimes {
  std::vector<double> seconds;
  std::vector<double> rates;  // of the machine beside each of them: bytes read, or multiply-adds, a second
  experts::ExpertCounts before, after;
};

double median(std::vector<double> values);

/// How near steps come to a limit: the median over them of work / seconds / rate.
double share_of_limit(const StepTimes& times, double work);

/// What the steps of a benchmark look like.
struct StepBenchOptions {
  std::int64_t chunk = 2048;  // rows of a prefill step
  std::int64_t steps = 32;    // decode steps
  bool same_experts = false;  // rows are copies of one sequence, not successive tokens of one
  std::uint64_t seed = 1;
};

class StepBench {
 public:
  /// With a meter, the machine is measured beside each step.
  StepBench(model::Model& model, const StepBenchOptions& options, backend::cpu::MachineMeter* meter);

  /// Reading `tokens` tokens, `times` times.
  Result<StepTimes> prefill(std::int64_t tokens, int times);
  /// Steps of `rows` rows behind `depth` tokens.
  Result<StepTimes> decode(std::int64_t depth, std::int64_t rows);
  /// Bytes a second of copying inside the backend's memory, read and written counted.
  Result<double> copy_rate();

 private:
  std::vector<std::int32_t> some_tokens(std::int64_t count);
  /// One step and its greedy choices, which the host waits for.
  Result<void> step(std::span<const model::Segment> segments, model::ForwardOptions::Logits logits);
  /// As if `depth` tokens had been read: with zeros every score would be tied.
  Result<void> fill(model::SequenceState& state, std::int64_t depth);
  /// Steps until a device pool is full and has forgotten how that went.
  [[nodiscard]] std::int64_t steps_to_fill(std::int64_t rows) const;

  StepBenchOptions options_;
  model::Model& model_;
  backend::Backend& backend_;
  backend::cpu::MachineMeter* meter_;
  std::mt19937_64 random_;
  std::unique_ptr<backend::Buffer> choice_, noise_;
};

/// Bytes of weights that one step of so many rows reads, records having `record_bytes`, routes being
/// uniformly random, or the same for all rows.
double bytes_touched(const model::Model& model, std::int64_t rows, bool same_experts,
                     std::int64_t record_bytes);

/// Multiply-adds of reading a token: matrices, without attention.
double multiply_adds_of_token(const model::Model& model);

}  // namespace sluice::cli

// From logits to a token.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "base/result.h"

namespace sluice::decode {

/// How a token is drawn. The filters apply in the order top_k, top_p, min_p to the distribution after
/// temperature.
struct SamplingParams {
  double temperature = 1;             // 0: the largest logit, whatever the filters say
  double top_p = 1;                   // 1: off; else the smallest set whose probabilities reach it
  std::int64_t top_k = 0;             // 0: off
  double min_p = 0;                   // 0: off; else at least this share of the largest probability
  std::optional<std::uint64_t> seed;  // absent: a different one each time

  /// Errors name the parameter, the value and the range.
  [[nodiscard]] Result<void> check() const;
};

class Sampler {
 public:
  explicit Sampler(const SamplingParams& params);

  /// Draws from one row of logits; only the first `limit` ids may be chosen (the rest are padding of the
  /// vocabulary). Fails when a logit is no number: text drawn from the others would hide damaged weights.
  Result<std::int32_t> sample(std::span<const float> logits, std::size_t limit);

  /// The seed in use, so that a run can be repeated.
  [[nodiscard]] std::uint64_t seed() const { return seed_; }

 private:
  struct Candidate {
    double probability = 0;
    std::int32_t token = 0;
  };
  SamplingParams params_;
  std::uint64_t seed_;
  std::mt19937_64 random_;
  std::vector<Candidate> candidates_;
};

/// The largest logit among the first `limit`, the lowest id on ties; NaN never wins; -1 when all are NaN.
std::int32_t argmax(std::span<const float> logits, std::size_t limit);

}  // namespace sluice::decode

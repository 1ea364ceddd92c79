#include "decode/sampler.h"

#include <algorithm>
#include <cmath>

namespace sluice::decode {

Result<void> SamplingParams::check() const {
  if (!(temperature >= 0) || !std::isfinite(temperature)) {
    return make_error(ErrorCode::kInvalidArgument, "temperature {}: needed 0 or more", temperature);
  }
  if (!(top_p >= 0 && top_p <= 1)) {
    return make_error(ErrorCode::kInvalidArgument, "top-p {}: needed 0 to 1", top_p);
  }
  if (top_k < 0) return make_error(ErrorCode::kInvalidArgument, "top-k {}: needed 0 (off) or more", top_k);
  if (!(min_p >= 0 && min_p <= 1)) {
    return make_error(ErrorCode::kInvalidArgument, "min-p {}: needed 0 to 1", min_p);
  }
  return {};
}

Sampler::Sampler(const SamplingParams& params)
    : params_(params),
      seed_(params.seed ? *params.seed
                        : (std::uint64_t{std::random_device{}()} << 32) ^ std::random_device{}()),
      random_(seed_) {}

std::int32_t argmax(std::span<const float> logits, std::size_t limit) {
  std::int32_t best = -1;
  for (std::size_t i = 0; i < std::min(limit, logits.size()); ++i) {
    if (std::isnan(logits[i])) continue;
    if (best < 0 || logits[i] > logits[static_cast<std::size_t>(best)]) best = static_cast<std::int32_t>(i);
  }
  return best;
}

Result<std::int32_t> Sampler::sample(std::span<const float> logits, std::size_t limit) {
  limit = std::min(limit, logits.size());
  for (std::size_t i = 0; i < limit; ++i) {
    if (std::isnan(logits[i])) {
      return make_error(ErrorCode::kCorrupt,
                        "sampling: the logit of token {} is no number: the weights are damaged", i);
    }
  }
  const std::int32_t top = argmax(logits, limit);
  if (top < 0) return make_error(ErrorCode::kCorrupt, "sampling: no logits to choose from");
  const double highest = logits[static_cast<std::size_t>(top)];
  if (params_.temperature == 0 || !std::isfinite(highest)) return top;

  candidates_.clear();
  for (std::size_t i = 0; i < limit; ++i) {
    candidates_.push_back(
        {std::exp((logits[i] - highest) / params_.temperature), static_cast<std::int32_t>(i)});
  }
  // A total order, so that the same seed draws the same token on every machine.
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.probability > b.probability || (a.probability == b.probability && a.token < b.token);
  };
  const auto top_k = static_cast<std::size_t>(params_.top_k);
  if (top_k > 0 && top_k < candidates_.size()) {
    std::partial_sort(candidates_.begin(), candidates_.begin() + static_cast<std::ptrdiff_t>(top_k),
                      candidates_.end(), before);
    candidates_.resize(top_k);
  } else {
    std::sort(candidates_.begin(), candidates_.end(), before);
  }
  double sum = 0;
  for (const Candidate& c : candidates_) sum += c.probability;
  if (params_.top_p < 1) {
    double kept = 0;
    std::size_t count = 0;
    while (count < candidates_.size() && (count == 0 || kept < params_.top_p * sum)) {
      kept += candidates_[count++].probability;
    }
    candidates_.resize(count);
    sum = kept;
  }
  if (params_.min_p > 0) {
    const double least = params_.min_p * candidates_.front().probability;
    while (candidates_.size() > 1 && candidates_.back().probability < least) {
      sum -= candidates_.back().probability;
      candidates_.pop_back();
    }
  }
  const double point = static_cast<double>(random_() >> 11) * 0x1p-53 * sum;
  double reached = 0;
  for (const Candidate& c : candidates_) {
    reached += c.probability;
    if (point < reached) return c.token;
  }
  return candidates_.back().token;
}

}  // namespace sluice::decode

#include "bench_steps.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace sluice::cli {

namespace {

using backend::Dev;
using experts::steady_seconds;

constexpr std::int64_t kWarmUp = 6;
constexpr std::size_t kNoise = std::size_t{1} << 20;  // floats, repeated

Dev<std::byte> bytes_at(Dev<float> at) {
  return Dev(reinterpret_cast<std::byte*>(at.address()));
}

}  // namespace

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}

double share_of_limit(const StepTimes& times, double work) {
  std::vector<double> shares;
  for (std::size_t i = 0; i < times.rates.size(); ++i)
    shares.push_back(work / times.seconds[i] / times.rates[i]);
  return median(std::move(shares));
}

StepBench::StepBench(model::Model& model, const StepBenchOptions& options, backend::cpu::MachineMeter* meter)
    : options_(options), model_(model), backend_(model.backend()), meter_(meter), random_(options.seed) {}

Result<StepTimes> StepBench::prefill(std::int64_t tokens, int times) {
  StepTimes out;
  for (int i = 0; i < times; ++i) {
    SLUICE_ASSIGN(const auto state, model_.new_state(tokens));
    const auto prompt = some_tokens(tokens);
    const double rate_before = meter_ == nullptr ? 0 : meter_->multiply_rate();
    const double begin = steady_seconds();
    for (std::int64_t at = 0; at < tokens; at += options_.chunk) {
      const std::int64_t now = std::min(options_.chunk, tokens - at);
      const model::Segment segment{state.get(), std::span(prompt).subspan(static_cast<std::size_t>(at),
                                                                          static_cast<std::size_t>(now))};
      SLUICE_TRY(step(std::span(&segment, 1), model::ForwardOptions::Logits::kLast));
    }
    out.seconds.push_back(steady_seconds() - begin);
    if (meter_ != nullptr) out.rates.push_back((rate_before + meter_->multiply_rate()) / 2);
  }
  return out;
}

Result<StepTimes> StepBench::decode(std::int64_t depth, std::int64_t rows) {
  const std::int64_t warm_up = kWarmUp + steps_to_fill(rows);
  const auto sequences = static_cast<std::size_t>(options_.same_experts ? rows : 1);
  const std::int64_t tokens_each = options_.same_experts ? 1 : rows;
  std::vector<std::unique_ptr<model::SequenceState>> states;
  const auto past = some_tokens(depth);
  for (std::size_t i = 0; i < sequences; ++i) {
    SLUICE_ASSIGN(auto state, model_.new_state(depth + (warm_up + options_.steps) * tokens_each + 1));
    SLUICE_TRY(state->begin(past));
    SLUICE_TRY(state->commit(depth));
    SLUICE_TRY(fill(*state, depth));
    states.push_back(std::move(state));
  }
  StepTimes times;
  double rate = 0;
  for (std::int64_t i = 0; i < warm_up + options_.steps; ++i) {
    if (i == warm_up) {
      times.before = model_.expert_counts();
      if (meter_ != nullptr) rate = meter_->read_rate();
    }
    const auto tokens = some_tokens(tokens_each);
    std::vector<model::Segment> segments;
    for (const auto& state : states) segments.push_back({state.get(), tokens});
    const double begin = steady_seconds();
    SLUICE_TRY(step(segments, model::ForwardOptions::Logits::kAll));
    if (i < warm_up) continue;
    times.seconds.push_back(steady_seconds() - begin);
    if (meter_ == nullptr) continue;
    const double after = meter_->read_rate();
    times.rates.push_back((rate + after) / 2);
    rate = after;
  }
  times.after = model_.expert_counts();
  return times;
}

Result<double> StepBench::copy_rate() {
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  SLUICE_ASSIGN(const auto from, backend_.allocate(kBytes));
  SLUICE_ASSIGN(const auto to, backend_.allocate(kBytes));
  double best = 0;
  for (int i = 0; i < 5; ++i) {
    backend_.synchronise();
    const double begin = steady_seconds();
    backend_.copy(to->as<std::byte>(), from->as<std::byte>(), kBytes);
    backend_.synchronise();
    best = std::max(best, 2.0 * kBytes / (steady_seconds() - begin));
  }
  return best;
}

std::int64_t StepBench::steps_to_fill(std::int64_t rows) const {
  const auto& c = model_.config();
  const auto slots =
      static_cast<std::int64_t>(model_.experts().device_bytes()) / model_.source().record_layout().bytes();
  return 3 * slots / (c.layer_count() * std::min(c.experts, c.experts_per_token * rows));
}

std::vector<std::int32_t> StepBench::some_tokens(std::int64_t count) {
  std::uniform_int_distribution<std::int32_t> any(0, static_cast<std::int32_t>(model_.config().vocab) - 1);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  for (auto& id : ids) id = any(random_);
  return ids;
}

Result<void> StepBench::step(std::span<const model::Segment> segments, model::ForwardOptions::Logits logits) {
  if (!choice_) {
    SLUICE_ASSIGN(choice_, backend_.allocate(sizeof(std::int32_t) * 64));
  }
  model::ForwardOptions forward;
  forward.logits = logits;
  std::int64_t rows = 0;
  forward.on_logits = [&](std::int64_t first, std::int64_t count, Dev<const float> data) -> Result<void> {
    backend_.argmax_rows(data, count, model_.config().vocab, choice_->as<std::int32_t>(first));
    rows = first + count;
    return {};
  };
  SLUICE_TRY(model_.forward(segments, forward));
  std::array<std::int32_t, 64> chosen{};
  backend_.download(std::as_writable_bytes(std::span(chosen).first(static_cast<std::size_t>(rows))),
                    choice_->as<std::byte>());
  SLUICE_TRY(backend_.status());
  for (const model::Segment& segment : segments) {
    SLUICE_TRY(segment.state->commit(static_cast<std::int64_t>(segment.tokens.size())));
  }
  return {};
}

Result<void> StepBench::fill(model::SequenceState& state, std::int64_t depth) {
  if (!noise_) {
    SLUICE_ASSIGN(noise_, backend_.allocate(kNoise * sizeof(float)));
    std::normal_distribution<float> normal;
    std::vector<float> values(kNoise);
    for (float& v : values) v = normal(random_);
    backend_.upload(noise_->as<std::byte>(), std::as_bytes(std::span(values)));
  }
  const auto& c = model_.config();
  const auto noise = [&](Dev<float> to, std::int64_t count) {
    for (std::int64_t at = 0; at < count; at += static_cast<std::int64_t>(kNoise)) {
      const auto now = std::min<std::int64_t>(static_cast<std::int64_t>(kNoise), count - at);
      backend_.copy(bytes_at(to + at), noise_->as<std::byte>(),
                    static_cast<std::size_t>(now) * sizeof(float));
    }
  };
  const auto rounded_noise = [&](Dev<std::int8_t> codes, Dev<std::uint16_t> scales, std::int64_t count) {
    for (std::int64_t at = 0; at < count; at += static_cast<std::int64_t>(kNoise)) {
      const auto now = std::min<std::int64_t>(static_cast<std::int64_t>(kNoise), count - at);
      backend_.quantise_q8(noise_->as<float>(), now / backend::kQ8Group, codes + at,
                           scales + at / backend::kQ8Group);
    }
  };
  for (std::int64_t n = 0; n < c.layer_count(); ++n) {
    if (c.layers[static_cast<std::size_t>(n)] == spec::LayerKind::kLinear) continue;
    const model::FullCache& cache = state.full(n);
    if (cache.q8.keys) {
      rounded_noise(cache.q8.keys, cache.q8.key_scales, depth * c.kv_width());
      rounded_noise(cache.q8.values, cache.q8.value_scales, depth * c.kv_width());
    } else {
      noise(cache.keys, depth * c.kv_width());
      noise(cache.values, depth * c.kv_width());
    }
    if (!c.indexer) continue;
    noise(cache.index_raw, depth * c.indexer->head_dim);
    noise(cache.index_blocks, depth / c.indexer->ratio * c.indexer->head_dim);
  }
  backend_.synchronise();
  return backend_.status();
}

double bytes_touched(const model::Model& model, std::int64_t rows, bool same_experts,
                     std::int64_t record_bytes) {
  const auto& c = model.config();
  const auto experts = static_cast<double>(c.experts);
  const auto by_row = static_cast<double>(c.experts_per_token);
  const double chosen =
      same_experts ? by_row : experts * (1 - std::pow(1 - by_row / experts, static_cast<double>(rows)));
  const auto records = chosen * static_cast<double>(c.layer_count() * record_bytes);
  // Of the embedding table a row each.
  return static_cast<double>(model.weight_bytes() - model.embedding_bytes()) + records;
}

double multiply_adds_of_token(const model::Model& model) {
  const auto& c = model.config();
  const store::ParameterCounts p = model.source().parameters();
  const auto expert = static_cast<double>(3 * c.hidden * c.expert_inter);
  return static_cast<double>(p.delta_net + p.attention + p.hyper + p.shared_experts + p.routers + p.ple) +
         static_cast<double>(c.layer_count() * c.experts_per_token) * expert;
}

}  // namespace sluice::cli

#include "bench_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "backend/create.h"
#include "base/json.h"
#include "base/units.h"
#include "experts/bus_rate.h"
#include "experts/statistics.h"
#include "model/model.h"
#include "pack/random_source.h"
#include "pack_options.h"
#include "store/store_format.h"
#include "terminal.h"

namespace sluice::cli {
namespace {

using backend::Dev;
using experts::steady_seconds;

constexpr std::int64_t kWarmUp = 6;
constexpr std::size_t kNoise = std::size_t{1} << 20;  // floats, repeated

struct Times {
  std::vector<double> seconds;
  experts::ExpertCounts before, after;
  [[nodiscard]] double median() const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

Dev<std::byte> bytes_at(Dev<float> at) {
  return Dev(reinterpret_cast<std::byte*>(at.address()));
}

class ShapeBench {
 public:
  ShapeBench(const BenchShapeOptions& options, model::Model& model)
      : options_(options), model_(model), backend_(model.backend()), random_(options.seed) {}

  /// Seconds of reading a prompt.
  Result<double> prefill(std::int64_t tokens) {
    SLUICE_ASSIGN(const auto state, model_.new_state(tokens));
    const auto prompt = some_tokens(tokens);
    const double begin = steady_seconds();
    for (std::int64_t at = 0; at < tokens; at += options_.chunk) {
      const std::int64_t now = std::min(options_.chunk, tokens - at);
      SLUICE_TRY(step(*state,
                      std::span(prompt).subspan(static_cast<std::size_t>(at), static_cast<std::size_t>(now)),
                      model::ForwardOptions::Logits::kLast));
    }
    return steady_seconds() - begin;
  }

  Result<Times> decode(std::int64_t depth, std::int64_t rows) {
    const std::int64_t warm_up = kWarmUp + steps_to_fill(rows);
    SLUICE_ASSIGN(const auto state, model_.new_state(depth + (warm_up + options_.decode) * rows + 1));
    SLUICE_TRY(state->begin(some_tokens(depth)));
    SLUICE_TRY(state->commit(depth));
    SLUICE_TRY(fill(*state, depth));
    Times times;
    for (std::int64_t i = 0; i < warm_up + options_.decode; ++i) {
      if (i == warm_up) times.before = model_.expert_counts();
      const auto tokens = some_tokens(rows);
      const double begin = steady_seconds();
      SLUICE_TRY(step(*state, tokens, model::ForwardOptions::Logits::kAll));
      if (i >= warm_up) times.seconds.push_back(steady_seconds() - begin);
    }
    times.after = model_.expert_counts();
    return times;
  }

  /// Bytes a second of copying inside the backend's memory, read and written counted.
  Result<double> copy_rate() {
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

 private:
  /// Steps until a device pool is full and has forgotten how that went.
  [[nodiscard]] std::int64_t steps_to_fill(std::int64_t rows) const {
    const auto& c = model_.config();
    const auto slots =
        static_cast<std::int64_t>(model_.experts().device_bytes()) / model_.source().record_layout().bytes();
    return 3 * slots / (c.layer_count() * std::min(c.experts, c.experts_per_token * rows));
  }

  std::vector<std::int32_t> some_tokens(std::int64_t count) {
    std::uniform_int_distribution<std::int32_t> any(0, static_cast<std::int32_t>(model_.config().vocab) - 1);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
    for (auto& id : ids) id = any(random_);
    return ids;
  }

  /// One step and its greedy choices, which the host waits for.
  Result<void> step(model::SequenceState& state, std::span<const std::int32_t> tokens,
                    model::ForwardOptions::Logits logits) {
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
    const model::Segment segment{&state, tokens};
    SLUICE_TRY(model_.forward(std::span(&segment, 1), forward));
    std::array<std::int32_t, 64> chosen{};
    backend_.download(std::as_writable_bytes(std::span(chosen).first(static_cast<std::size_t>(rows))),
                      choice_->as<std::byte>());
    SLUICE_TRY(backend_.status());
    return state.commit(static_cast<std::int64_t>(tokens.size()));
  }

  /// As if `depth` tokens had been read: with zeros every score would be tied.
  Result<void> fill(model::SequenceState& state, std::int64_t depth) {
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
    for (std::int64_t n = 0; n < c.layer_count(); ++n) {
      if (c.layers[static_cast<std::size_t>(n)] == spec::LayerKind::kLinear) continue;
      const model::FullCache& cache = state.full(n);
      noise(cache.keys, depth * c.kv_width());
      noise(cache.values, depth * c.kv_width());
      if (!c.indexer) continue;
      noise(cache.index_raw, depth * c.indexer->head_dim);
      noise(cache.index_blocks, depth / c.indexer->ratio * c.indexer->head_dim);
    }
    backend_.synchronise();
    return backend_.status();
  }

  const BenchShapeOptions& options_;
  model::Model& model_;
  backend::Backend& backend_;
  std::mt19937_64 random_;
  std::unique_ptr<backend::Buffer> choice_, noise_;
};

/// Weights that one step of so many rows reads, routes being uniformly random.
double bytes_touched(const model::Model& model, std::int64_t rows) {
  const auto& c = model.config();
  const double experts = static_cast<double>(c.experts);
  const double chosen =
      experts * (1 - std::pow(1 - static_cast<double>(c.experts_per_token) / experts, rows));
  const auto records = chosen * static_cast<double>(c.layer_count() * model.source().record_layout().bytes());
  // Of the embedding table a row each.
  const double embed = static_cast<double>(c.vocab * c.hidden) / 2 * 1.125;
  return static_cast<double>(model.weight_bytes()) - embed + records;
}

/// Records come from a pinned pool, which is filled with copies of one.
Result<void> stream_records(const BenchShapeOptions& options, const store::WeightSource& source,
                            model::ModelOptions& loading) {
  if (!options.device_pool) return {};
  const auto slot = static_cast<std::uint64_t>(store::slot_bytes(source.record_layout()));
  const auto records = static_cast<std::uint64_t>(source.config().layer_count() * source.config().experts);
  loading.pool_bytes = std::min(options.pool.value_or(EngineOptions::kAllExperts), records * slot);
  loading.device_pool_bytes = *options.device_pool;
  loading.stream.in_place = options.in_place;
  loading.stream.lookahead = false;
  loading.stream.ring = false;
  const auto one = std::make_shared<std::vector<std::byte>>(slot);
  SLUICE_TRY(source.read_slot(0, 0, *one));
  loading.stream.wrap = [one](experts::SlotSource slots) {
    slots.read = [one](std::int64_t, std::span<std::byte> to) -> Result<void> {
      std::copy_n(one->begin(), std::min(one->size(), to.size()), to.begin());
      return {};
    };
    slots.place = nullptr;
    return slots;
  };
  return {};
}

/// What crossed the bus in the steps of one measurement; null where nothing did.
Json bus_json(const Times& times, double bus) {
  const std::uint64_t bytes = times.after.bus_bytes - times.before.bus_bytes;
  if (bytes == 0) return {};
  double seconds = 0;
  for (const double s : times.seconds) seconds += s;
  const double rate = static_cast<double>(bytes) / seconds;
  return {{"device_hits", times.after.device_hits - times.before.device_hits},
          {"in_place", times.after.in_place - times.before.in_place},
          {"copied", times.after.copied - times.before.copied},
          {"bytes_a_step", bytes / times.seconds.size()},
          {"bytes_per_second", rate},
          {"copies_per_second", bus},
          {"share", bus > 0 ? rate / bus : 0}};
}

}  // namespace

Result<void> bench_shape(const BenchShapeOptions& options) {
  const auto geometry = spec::named_geometry(options.shape);
  if (!geometry) {
    return make_error(ErrorCode::kInvalidArgument, "{}: no such shape; flash-next, demo or tiny needed",
                      options.shape);
  }
  pack::RandomModel random;
  SLUICE_ASSIGN(random.config, spec::override_geometry(*geometry, options.overrides));
  SLUICE_ASSIGN(random.experts, parse_precisions(options.precision, "--precision"));
  SLUICE_ASSIGN(random.dense, parse_dense(options.dense));
  random.seed = options.seed;
  SLUICE_ASSIGN(auto source, pack::RandomSource::create(random));
  SLUICE_ASSIGN(const auto backend,
                backend::create_backend(options.backend, {options.threads, options.device, options.exact}));
  model::ModelOptions loading;
  loading.mtp = false;
  loading.repeat_records = true;
  loading.max_rows = std::max<std::int64_t>(model::kStepRows, options.prefill.empty() ? 0 : options.chunk);
  SLUICE_TRY(stream_records(options, *source, loading));
  ProgressBar bar("making weights");
  SLUICE_ASSIGN(const auto model, model::Model::load(std::move(source), *backend, loading,
                                                     [&](std::uint64_t done, std::uint64_t total) {
                                                       bar.update(done, total);
                                                     }));
  bar.clear();
  model->settle_experts();
  double bus = 0;
  if (options.device_pool) {
    const auto record = static_cast<std::size_t>(model->source().record_layout().bytes());
    SLUICE_ASSIGN(bus, experts::measure_bus(*backend, record, 1));
  }
  ShapeBench bench(options, *model);
  SLUICE_ASSIGN(const double copy, bench.copy_rate());
  Json out = {{"shape", options.shape},
              {"backend", options.backend},
              {"layers", model->config().layer_count()},
              {"dense_bytes", model->weight_bytes()},
              {"expert_bytes", model->expert_bytes()},
              {"copy_bytes_per_second", copy},
              {"prefill", Json::array()},
              {"decode", Json::array()}};
  if (!options.json) {
    print_out("{} on {}: {} dense, {} experts; memory copies {} a second\n", options.shape, options.backend,
              format_size(model->weight_bytes()), format_size(model->expert_bytes()),
              format_size(static_cast<std::uint64_t>(copy)));
  }
  for (const std::int64_t tokens : options.prefill) {
    SLUICE_TRY(bench.prefill(std::min<std::int64_t>(tokens, options.chunk)));  // warm-up
    SLUICE_ASSIGN(const double seconds, bench.prefill(tokens));
    const double rate = static_cast<double>(tokens) / seconds;
    out["prefill"].push_back({{"tokens", tokens}, {"seconds", seconds}, {"tokens_per_second", rate}});
    if (!options.json) print_out("prefill {}: {:.3f} s, {:.1f} tokens/s\n", tokens, seconds, rate);
  }
  for (const std::int64_t depth : options.depth) {
    for (const std::int64_t rows : options.rows) {
      if (options.decode == 0) continue;
      SLUICE_ASSIGN(const Times times, bench.decode(depth, rows));
      const double median = times.median();
      const double bytes = bytes_touched(*model, rows);
      const auto [least, most] = std::minmax_element(times.seconds.begin(), times.seconds.end());
      out["decode"].push_back({{"depth", depth},
                               {"rows", rows},
                               {"steps", options.decode},
                               {"step_ms_median", 1e3 * median},
                               {"step_ms_min", 1e3 * *least},
                               {"step_ms_max", 1e3 * *most},
                               {"tokens_per_second", static_cast<double>(rows) / median},
                               {"bytes_touched", bytes},
                               {"share_of_copy", bytes / median / copy},
                               {"bus", bus_json(times, bus)}});
      if (options.json) continue;
      print_out(
          "decode at {}, {} rows: {:.3f} ms a step (median of {}; {:.3f} to {:.3f}), {:.1f} tokens/s, {} a "
          "step, "
          "{:.0f}% of the copy rate\n",
          depth, rows, 1e3 * median, options.decode, 1e3 * *least, 1e3 * *most,
          static_cast<double>(rows) / median, format_size(static_cast<std::uint64_t>(bytes)),
          100 * bytes / median / copy);
      if (const Json crossed = bus_json(times, bus); !crossed.is_null()) {
        print_out(
            "  over the bus {} a step, {} a second, {:.0f}% of what copies of records reach ({} a "
            "second); {} in the device's memory, {} in place, {} copied\n",
            format_size(crossed["bytes_a_step"]), format_size(crossed["bytes_per_second"]),
            100 * crossed["share"].get<double>(), format_size(static_cast<std::uint64_t>(bus)),
            crossed["device_hits"].get<std::uint64_t>(), crossed["in_place"].get<std::uint64_t>(),
            crossed["copied"].get<std::uint64_t>());
      }
    }
  }
  if (options.json) print_out("{}\n", dump_json(out, 2));
  return {};
}

}  // namespace sluice::cli

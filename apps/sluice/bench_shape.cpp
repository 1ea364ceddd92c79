#include "bench_shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "backend/create.h"
#include "base/json.h"
#include "base/units.h"
#include "bench_steps.h"
#include "experts/bus_rate.h"
#include "experts/statistics.h"
#include "model/model.h"
#include "pack/random_source.h"
#include "pack_options.h"
#include "store/store_format.h"
#include "terminal.h"

namespace sluice::cli {
namespace {

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
Json bus_json(const StepTimes& times, double bus) {
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
  if (options.kv_q8) loading.kv = model::KvFormat::kQ8;
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
  const std::int64_t record_bytes = model->source().record_layout().bytes();
  StepBench bench(*model, {options.chunk, options.decode, false, options.seed}, nullptr);
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
    SLUICE_TRY(bench.prefill(std::min<std::int64_t>(tokens, options.chunk), 1));  // warm-up
    SLUICE_ASSIGN(const StepTimes read, bench.prefill(tokens, 1));
    const double seconds = read.seconds.front();
    const double rate = static_cast<double>(tokens) / seconds;
    out["prefill"].push_back({{"tokens", tokens}, {"seconds", seconds}, {"tokens_per_second", rate}});
    if (!options.json) print_out("prefill {}: {:.3f} s, {:.1f} tokens/s\n", tokens, seconds, rate);
  }
  for (const std::int64_t depth : options.depth) {
    for (const std::int64_t rows : options.rows) {
      if (options.decode == 0) continue;
      SLUICE_ASSIGN(const StepTimes times, bench.decode(depth, rows));
      const double step = median(times.seconds);
      const double bytes = bytes_touched(*model, rows, false, record_bytes);
      const auto [least, most] = std::minmax_element(times.seconds.begin(), times.seconds.end());
      out["decode"].push_back({{"depth", depth},
                               {"rows", rows},
                               {"steps", options.decode},
                               {"step_ms_median", 1e3 * step},
                               {"step_ms_min", 1e3 * *least},
                               {"step_ms_max", 1e3 * *most},
                               {"tokens_per_second", static_cast<double>(rows) / step},
                               {"bytes_touched", bytes},
                               {"share_of_copy", bytes / step / copy},
                               {"bus", bus_json(times, bus)}});
      if (options.json) continue;
      print_out(
          "decode at {}, {} rows: {:.3f} ms a step (median of {}; {:.3f} to {:.3f}), {:.1f} tokens/s, {} a "
          "step, "
          "{:.0f}% of the copy rate\n",
          depth, rows, 1e3 * step, options.decode, 1e3 * *least, 1e3 * *most,
          static_cast<double>(rows) / step, format_size(static_cast<std::uint64_t>(bytes)),
          100 * bytes / step / copy);
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

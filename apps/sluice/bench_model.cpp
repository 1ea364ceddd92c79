#include "bench_model.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "backend/create.h"
#include "base/json.h"
#include "base/units.h"
#include "decode/session.h"
#include "engine/loading.h"
#include "experts/bus_rate.h"
#include "experts/drive_rate.h"
#include "pack/cache.h"
#include "terminal.h"

namespace sluice::cli {
namespace {

using experts::ExpertCounts;

constexpr double kDriveSeconds = 2;
constexpr double kBusSeconds = 0.5;
constexpr std::uint64_t kDriveRecords = 1024;
constexpr std::int64_t kPrompt = 64;  // tokens before decoding, where no prefill is asked for

/// What one phase took and what became of its records.
struct Phase {
  std::int64_t tokens = 0;
  std::vector<double> steps;  // seconds each
  ExpertCounts before, after;
  double drive = 0;  // bytes a second, beside it
  double bus = 0;    // the same between host and device; 0: nothing crosses it

  [[nodiscard]] double seconds() const { return std::accumulate(steps.begin(), steps.end(), 0.0); }
  [[nodiscard]] double bytes() const { return static_cast<double>(after.bytes_read - before.bytes_read); }
  [[nodiscard]] double wait() const { return after.wait_seconds - before.wait_seconds; }
  /// Time that the drive needs for what was read, and that was spent on anything but waiting for it.
  [[nodiscard]] double read_limit() const { return drive > 0 ? bytes() / drive : 0; }
  [[nodiscard]] double compute() const { return seconds() - wait(); }
  [[nodiscard]] std::uint64_t bus_bytes() const { return after.bus_bytes - before.bus_bytes; }
  /// Bytes a second that crossed the bus, beside what it can give.
  [[nodiscard]] double bus_share() const {
    return bus > 0 ? static_cast<double>(bus_bytes()) / seconds() / bus : 0;
  }
  /// How near the phase is to the larger of the two.
  [[nodiscard]] double share() const { return std::max(read_limit(), compute()) / seconds(); }
};

Json phase_json(const Phase& p) {
  const auto tokens = static_cast<double>(p.tokens);
  const std::uint64_t hits = p.after.hits - p.before.hits;
  const std::uint64_t wanted = hits + (p.after.late - p.before.late) + (p.after.misses - p.before.misses);
  return {{"tokens", p.tokens},
          {"seconds", p.seconds()},
          {"tokens_per_second", tokens / p.seconds()},
          {"step_ms_median", 1e3 * median(p.steps)},
          {"step_ms_min", 1e3 * *std::min_element(p.steps.begin(), p.steps.end())},
          {"step_ms_max", 1e3 * *std::max_element(p.steps.begin(), p.steps.end())},
          {"bytes_read", p.after.bytes_read - p.before.bytes_read},
          {"bytes_read_per_token", p.bytes() / tokens},
          {"hit_rate", wanted == 0 ? 0.0 : static_cast<double>(hits) / static_cast<double>(wanted)},
          {"lookahead",
           {{"read", p.after.ahead - p.before.ahead},
            {"useful", p.after.ahead_useful - p.before.ahead_useful},
            {"late", p.after.ahead_late - p.before.ahead_late},
            {"wasted", p.after.ahead_wasted - p.before.ahead_wasted}}},
          {"device",
           {{"hits", p.after.device_hits - p.before.device_hits},
            {"in_place", p.after.in_place - p.before.in_place},
            {"copied", p.after.copied - p.before.copied},
            {"bus_bytes", p.bus_bytes()},
            {"bus_bytes_per_second", static_cast<double>(p.bus_bytes()) / p.seconds()},
            {"bus_rate", p.bus},
            {"share_of_bus_rate", p.bus_share()}}},
          {"wait_seconds", p.wait()},
          {"compute_seconds", p.compute()},
          {"drive_seconds", p.read_limit()},
          {"share_of_limit", p.share()}};
}

void print_phase(const std::string& name, const Phase& p) {
  print_out("{}: {} tokens in {:.2f} s, {:.2f} tokens/s, {:.2f} ms a step (median)\n", name, p.tokens,
            p.seconds(), static_cast<double>(p.tokens) / p.seconds(), 1e3 * median(p.steps));
  if (p.bus_bytes() > 0) {
    print_out("  over the bus {} a token, {} a second: {:.0f}% of the {} that copies of records reach\n",
              format_size(p.bus_bytes() / static_cast<std::uint64_t>(p.tokens)),
              format_size(static_cast<std::uint64_t>(static_cast<double>(p.bus_bytes()) / p.seconds())),
              100 * p.bus_share(), format_size(static_cast<std::uint64_t>(p.bus)));
    print_out("  experts: {} in the device's memory, {} read in place, {} copied\n",
              p.after.device_hits - p.before.device_hits, p.after.in_place - p.before.in_place,
              p.after.copied - p.before.copied);
  }
  if (p.bytes() == 0) return;
  print_out(
      "  read {} ({} a token): {:.2f} s at the drive's rate; not waiting {:.2f} s; {:.0f}% of the limit\n",
      format_size(static_cast<std::uint64_t>(p.bytes())),
      format_size(static_cast<std::uint64_t>(p.bytes() / static_cast<double>(p.tokens))), p.read_limit(),
      p.compute(), 100 * p.share());
}

bool reads_from_drive(const model::Model& model) {
  return model.experts().reader() != "memory";
}

/// Bytes a second; 0 where all records are in memory.
Result<double> drive_rate(const model::Model& model, std::size_t tier, bool io_uring) {
  if (!reads_from_drive(model)) return 0.0;
  SLUICE_ASSIGN(const auto rate,
                experts::measure_drive(model.source(), tier, kDriveRecords, kDriveSeconds, {}, io_uring));
  return rate.bytes_per_second();
}

class Bench {
 public:
  Bench(BenchModelOptions& options, model::Model& model, std::size_t tier)
      : options_(options), model_(model), tier_(tier), random_(options.seed) {}

  /// One session that reads a prompt and decodes; phases of 0 tokens are left out.
  Result<void> run(std::int64_t prompt, std::int64_t decode, Phase& prefill, Phase& decoding) {
    SLUICE_ASSIGN(const auto session, decode::Session::create(model_, prompt + decode));
    const auto read_prompt = [&]() -> Result<void> {
      const double begin = experts::steady_seconds();
      SLUICE_TRY(session->prefill(tokens(prompt)));
      prefill.steps.push_back(experts::steady_seconds() - begin);
      return {};
    };
    SLUICE_TRY(timed(prefill, prompt, read_prompt));
    if (decode == 0) return {};
    return timed(decoding, decode, [&]() -> Result<void> {
      for (const std::int32_t token : tokens(decode)) {
        const double begin = experts::steady_seconds();
        SLUICE_TRY(session->step(token));
        decoding.steps.push_back(experts::steady_seconds() - begin);
      }
      return {};
    });
  }

 private:
  std::vector<std::int32_t> tokens(std::int64_t count) {
    std::uniform_int_distribution<std::int32_t> any(0, static_cast<std::int32_t>(model_.config().vocab) - 1);
    std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
    for (auto& id : ids) id = any(random_);
    return ids;
  }
  Result<double> drive() { return drive_rate(model_, tier_, options_.model.engine.streaming.io_uring); }
  /// What the bus gives; 0 where no records crossed it.
  Result<double> bus(const Phase& phase) {
    if (phase.bus_bytes() == 0) return 0.0;
    const spec::RecordLayout& layout = model_.source().record_layouts()[tier_];
    return experts::measure_bus(model_.backend(), static_cast<std::size_t>(layout.bytes()), kBusSeconds);
  }
  template <class Fn>
  Result<void> timed(Phase& phase, std::int64_t tokens, const Fn& fn) {
    phase.tokens = tokens;
    model_.settle_experts();
    // Drives drift: the rate counts that was there before and after.
    SLUICE_ASSIGN(const double before, drive());
    phase.before = model_.expert_counts();
    SLUICE_TRY(fn());
    phase.after = model_.expert_counts();
    SLUICE_ASSIGN(const double after, drive());
    phase.drive = (before + after) / 2;
    SLUICE_ASSIGN(phase.bus, bus(phase));
    return {};
  }

  BenchModelOptions& options_;
  model::Model& model_;
  std::size_t tier_;
  std::mt19937_64 random_;
};

}  // namespace

Result<void> bench_model(BenchModelOptions& options) {
  EngineOptions& engine = options.model.engine;
  ProgressBar bar("loading");
  pack::PackOptions packing;
  packing.on_progress = [&](std::uint64_t done, std::uint64_t total) { bar.update("packing", done, total); };
  SLUICE_ASSIGN(auto source, engine.pack ? pack::open_model(options.model.folder, engine.store_dir, packing)
                                         : store::open_source(options.model.folder));
  std::vector<std::int64_t> prompts = options.prefill;
  if (prompts.empty()) prompts.push_back(kPrompt);
  engine::PlanOptions planned;
  planned.context = *std::max_element(prompts.begin(), prompts.end()) + options.decode;
  if (options.by_steps())
    planned.max_rows = std::max<std::int64_t>(std::min(options.chunk, planned.context), 8);
  planned.memory = engine.memory;
  planned.draft_head = false;
  planned.experts = engine.experts;
  SLUICE_ASSIGN(const auto backend,
                backend::create_backend(engine.backend, {engine.threads, engine.device, engine.exact}));
  SLUICE_ASSIGN(const auto loading, engine::choose_loading(*source, planned, engine, *backend));
  SLUICE_ASSIGN(const auto model, model::Model::load(std::move(source), *backend, loading,
                                                     [&](std::uint64_t done, std::uint64_t total) {
                                                       bar.update(done, total);
                                                     }));
  bar.clear();

  options.statistics.begin(*model);
  if (options.by_steps()) {
    RooflineOptions steps = options.steps;
    if (steps.depth.empty()) steps.depth = {4096};
    if (steps.rows.empty()) steps.rows = {1};
    if (reads_from_drive(*model)) {
      steps.drive = [&] { return drive_rate(*model, loading.tier, engine.streaming.io_uring); };
    }
    SLUICE_ASSIGN(const Json out,
                  measure_steps(*model, steps,
                                {std::min(options.chunk, model->max_rows()), options.decode,
                                 options.same_experts, options.seed},
                                options.prefill, model->source().record_layouts()[loading.tier].bytes(),
                                engine.threads, options.json));
    if (options.json) print_out("{}\n", dump_json(out, 2));
    return options.statistics.write_file(model->statistics());
  }
  Bench bench(options, *model, loading.tier);
  Json out = {{"model", options.model.folder},
              {"pool_bytes", loading.pool_bytes},
              {"device_pool_bytes", model->experts().device_bytes()},
              {"reader", model->experts().reader()},
              {"chunk", model->max_rows()},
              {"prefill", Json::array()}};
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    Phase prefill;
    Phase decoding;
    const bool last = i + 1 == prompts.size();
    SLUICE_TRY(bench.run(prompts[i], last ? options.decode : 0, prefill, decoding));
    if (!options.prefill.empty()) {
      out["prefill"].push_back(phase_json(prefill));
      if (!options.json) print_phase("prefill", prefill);
    }
    if (decoding.tokens == 0) continue;
    out["decode"] = phase_json(decoding);
    const experts::PhaseCounts& parts = model->statistics().decode();
    for (std::size_t part = 0; part < experts::kParts; ++part) {
      out["decode"]["parts_ms"][std::string(experts::part_name(static_cast<experts::Part>(part)))] =
          1e3 * parts.parts[part] / static_cast<double>(parts.tokens);
    }
    out["drive_bytes_per_second"] = decoding.drive;
    if (!options.json) print_phase("decode", decoding);
    if (!options.json && decoding.drive > 0) {
      print_out("drive: {} a second, random whole records, {}\n",
                format_size(static_cast<std::uint64_t>(decoding.drive)), model->experts().reader());
    }
  }
  if (options.json) print_out("{}\n", dump_json(out, 2));
  return options.statistics.write_file(model->statistics());
}

}  // namespace sluice::cli

// sluice bench: measurements. One mode a call.
#include <cmath>
#include <memory>

#include "base/json.h"
#include "base/units.h"
#include "bench_model.h"
#include "bench_shape.h"
#include "command.h"
#include "experts/policy_trace.h"
#include "terminal.h"

namespace sluice::cli {
namespace {

struct BenchOptions {
  std::vector<std::string> traces;  // --policy-trace
  bool synthetic = false;           // --policy-synthetic
  std::uint64_t seed = 1;
  std::vector<double> shares{0.1, 0.25, 0.5};
  experts::PolicyOptions policy;
  bool json = false;
};

struct PolicyRun {
  double share = 0;
  std::size_t slots = 0;
  std::array<experts::PolicyCounts, experts::kPolicies> counts;
};

Result<experts::RouteTrace> open_trace(const BenchOptions& options) {
  if (options.synthetic) {
    experts::SyntheticOptions synthetic;
    synthetic.seed = options.seed;
    return experts::synthetic_trace(synthetic);
  }
  SLUICE_ASSIGN(auto trace, experts::read_route_trace(options.traces.front()));
  for (std::size_t i = 1; i < options.traces.size(); ++i) {
    SLUICE_ASSIGN(const auto more, experts::read_route_trace(options.traces[i]));
    if (trace.append(more)) continue;
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: {} layers of {} experts, {} choices; needed {} of {} as in {}, at most {} in all",
                      options.traces[i], more.shape.layers, more.shape.experts, more.ids.size(),
                      trace.shape.layers, trace.shape.experts, options.traces.front(),
                      experts::RouteTrace::kMostIds);
  }
  return trace;
}

std::string trace_name(const BenchOptions& options) {
  if (options.synthetic) return fmt::format("synthetic, seed {}", options.seed);
  if (options.traces.size() == 1) return options.traces.front();
  return fmt::format("{} and {} more", options.traces.front(), options.traces.size() - 1);
}

Result<std::vector<PolicyRun>> replay_all(const BenchOptions& options, const experts::RouteTrace& trace) {
  const auto records = static_cast<double>(trace.shape.layers * trace.shape.experts);
  std::vector<PolicyRun> runs;
  ProgressBar bar("replaying");
  for (const double share : options.shares) {
    PolicyRun run;
    run.share = share;
    run.slots = static_cast<std::size_t>(std::max(2.0, std::floor(share * records)));
    experts::PolicyOptions policy = options.policy;
    policy.slots = run.slots;
    for (std::size_t i = 0; i < experts::kPolicies; ++i) {
      bar.update(runs.size() * experts::kPolicies + i, options.shares.size() * experts::kPolicies);
      run.counts[i] = experts::replay(trace, static_cast<experts::Policy>(i), policy);
    }
    runs.push_back(run);
  }
  return runs;
}

/// As CLI::Range, which lets NaN pass.
CLI::Validator between(double least, double most) {
  return {[least, most](const std::string& text) {
            double value = 0;
            if (CLI::detail::lexical_cast(text, value) && value >= least && value <= most)
              return std::string();
            return fmt::format("{} found, a number from {} to {} needed", text, least, most);
          },
          fmt::format("[{} - {}]", least, most)};
}

double bytes_per_token(const experts::RouteTrace& trace, std::uint64_t misses, experts::Use use) {
  const std::uint64_t tokens = trace.tokens(use);
  if (tokens == 0) return 0;
  return static_cast<double>(misses) * static_cast<double>(trace.shape.record_bytes) /
         static_cast<double>(tokens);
}

struct StepCounts {
  std::size_t decode = 0, prefill = 0;
};

StepCounts count_steps(const experts::RouteTrace& trace) {
  StepCounts out;
  for (const auto& step : trace.steps) ++(step.use == experts::Use::kDecode ? out.decode : out.prefill);
  return out;
}

void print_table(const BenchOptions& options, const experts::RouteTrace& trace,
                 const std::vector<PolicyRun>& runs) {
  using experts::Use;
  const StepCounts steps = count_steps(trace);
  std::string out = fmt::format(
      "{}: {} layers of {} experts, top {}, records of {}\n"
      "{} tokens decoded in {} steps, {} tokens of prompts in {}\n"
      "heat: half life {} steps, a prefill's touch worth {:.4g}\n\n",
      trace_name(options), trace.shape.layers, trace.shape.experts, trace.shape.top,
      format_size(trace.shape.record_bytes), trace.tokens(Use::kDecode), steps.decode,
      trace.tokens(Use::kPrefill), steps.prefill, options.policy.half_life, options.policy.prefill_weight);
  out += fmt::format("{:<28}", "pool, share of the records");
  for (const PolicyRun& run : runs) out += fmt::format("{:>12}", fmt::format("{:.4g}%", 100 * run.share));
  out += fmt::format("\n{:<28}", "slots");
  for (const PolicyRun& run : runs) out += fmt::format("{:>12}", run.slots);
  out += "\n\nhits of decode steps\n";
  const auto rows = [&](const auto& cell) {
    for (std::size_t i = 0; i < experts::kPolicies; ++i) {
      out += fmt::format("  {:<26}", experts::policy_name(static_cast<experts::Policy>(i)));
      for (const PolicyRun& run : runs) out += fmt::format("{:>12}", cell(run.counts[i]));
      out += "\n";
    }
  };
  rows([](const experts::PolicyCounts& c) { return fmt::format("{:.2f}%", 100 * c.hit_rate()); });
  const bool sized = trace.shape.record_bytes > 0;
  out += sized ? "\nread for a decoded token\n" : "\nrecords read by decode steps\n";
  rows([&](const experts::PolicyCounts& c) {
    if (!sized) return fmt::format("{}", c.misses);
    return format_size(static_cast<std::uint64_t>(bytes_per_token(trace, c.misses, Use::kDecode)));
  });
  write_out(out);
}

void print_json(const BenchOptions& options, const experts::RouteTrace& trace,
                const std::vector<PolicyRun>& runs) {
  using experts::Use;
  const StepCounts steps = count_steps(trace);
  Json out;
  out["trace"] = {{"name", trace_name(options)},
                  {"layers", trace.shape.layers},
                  {"experts", trace.shape.experts},
                  {"top", trace.shape.top},
                  {"record_bytes", trace.shape.record_bytes},
                  {"decode_steps", steps.decode},
                  {"decode_tokens", trace.tokens(Use::kDecode)},
                  {"prefill_steps", steps.prefill},
                  {"prefill_tokens", trace.tokens(Use::kPrefill)}};
  out["half_life"] = options.policy.half_life;
  out["prefill_weight"] = options.policy.prefill_weight;
  out["pools"] = Json::array();
  for (const PolicyRun& run : runs) {
    Json policies = Json::array();
    for (std::size_t i = 0; i < experts::kPolicies; ++i) {
      const experts::PolicyCounts& c = run.counts[i];
      policies.push_back({{"policy", experts::policy_name(static_cast<experts::Policy>(i))},
                          {"hits", c.hits},
                          {"misses", c.misses},
                          {"hit_rate", c.hit_rate()},
                          {"bytes_per_token", bytes_per_token(trace, c.misses, Use::kDecode)},
                          {"prefill_hits", c.prefill_hits},
                          {"prefill_misses", c.prefill_misses}});
    }
    out["pools"].push_back({{"share", run.share}, {"slots", run.slots}, {"policies", std::move(policies)}});
  }
  print_out("{}\n", dump_json(out, 2));
}

Result<void> compare_policies(const BenchOptions& options) {
  SLUICE_ASSIGN(const auto trace, open_trace(options));
  SLUICE_ASSIGN(const auto runs, replay_all(options, trace));
  if (options.json) {
    print_json(options, trace, runs);
  } else {
    print_table(options, trace, runs);
  }
  return {};
}

}  // namespace

void add_bench(CLI::App& app, Invocation& invocation) {
  auto options = std::make_shared<BenchOptions>();
  auto model = std::make_shared<BenchModelOptions>();
  model->decode = 32;
  CLI::App* command =
      add_command(app, "bench", "Measure a model's speed, or what a pool keeps under other policies.",
                  "sluice bench models/demo --prefill 512 --decode 64\n"
                  "  sluice bench big.sluice --roofline --prefill 512 --depth 2048,32768 --rows 1,4\n"
                  "  sluice bench --shape flash-next --layers 4 --ngram-base 20000 --rows 1,8\n"
                  "  sluice bench --policy-trace routes.txt --pool-share 0.1,0.25,0.5\n\n"
                  "`sluice run --trace-routes FILE` writes such a trace.");
  model->model.add_to(*command, false);
  CLI::Option* folder = command->get_option("MODEL")->required(false);
  command->add_option("--prefill", model->prefill, "tokens of prompts to read, one after the other")
      ->delimiter(',')
      ->check(kCount);
  command->add_option("--decode", model->decode, "tokens to decode after the last of them")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40))
      ->capture_default_str();
  auto shape = std::make_shared<BenchShapeOptions>();
  CLI::Option* shaped = command->add_option(
      "--shape", shape->shape, "instead of a MODEL: random weights of this geometry, made in memory");
  shaped->excludes(folder);
  const auto of_shape = [&](CLI::Option* option) { option->needs(shaped); };
  of_shape(command->add_option("--layers", shape->overrides.layers, "layers of the shape"));
  of_shape(command->add_option("--ngram-base", shape->overrides.ngram_base,
                               "rows of an n-gram head of the shape"));
  of_shape(command->add_option("--precision", shape->precision, "bits of the shape's experts: 4, 3 or 2"));
  of_shape(command->add_option("--dense", shape->dense, "bits of everything else: 4, 8 or bf16"));
  command
      ->add_option("--depth", model->steps.depth,
                   "tokens before decoding, made up instead of read (default: 4096)")
      ->delimiter(',')
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 24));
  command->add_option("--rows", model->steps.rows, "rows of a decode step, 1 to 8 (default: 1)")
      ->delimiter(',')
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{8}));
  command->add_option("--chunk", model->chunk, "rows of a prefill step (default: 2048)")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 16));
  const auto of_model = [&](CLI::Option* option) { option->excludes(shaped); };
  of_model(command->add_flag("--roofline", model->steps.roofline,
                             "measure the machine's memory and arithmetic beside each step"));
  of_model(command->add_flag("--same-experts", model->same_experts,
                             "rows are copies of one sequence, so that they choose the same experts"));
  of_model(command->add_option("--repeat", model->steps.repeat, "how often a prompt is read for --roofline")
               ->check(CLI::Range(1, 1000))
               ->capture_default_str());
  of_model(model->statistics.add_file_to(*command));
  auto* modes = command->add_option_group("Modes", "Instead of a model:");
  modes
      ->add_option("--policy-trace", options->traces,
                   "replay recorded routes against policies and pool sizes; several files are one run")
      ->type_name("FILE");
  modes->add_flag("--policy-synthetic", options->synthetic,
                  "the same with made-up routes of a model of 48 layers of 512 experts");
  modes->require_option(0, 1);
  command
      ->add_option("--pool-share", options->shares,
                   "pool sizes as shares of all records, above 0 and up to 1 (default: 0.1,0.25,0.5)")
      ->delimiter(',')
      ->check(between(1e-6, 1));
  command->add_option("--half-life", options->policy.half_life, "steps after which a touch is worth half")
      ->check(between(0.01, 1e9))
      ->capture_default_str();
  command
      ->add_option("--prefill-weight", options->policy.prefill_weight,
                   "what a prefill's touch is worth beside a decode step's")
      ->check(between(1e-9, 1e3))
      ->capture_default_str();
  command->add_option("--seed", options->seed, "of made-up tokens or routes")->capture_default_str();
  command->add_flag("--json", options->json, "JSON output");
  command->callback([options, model, shape, &invocation] {
    const bool replays = !options->traces.empty() || options->synthetic;
    const int modes_given =
        (replays ? 1 : 0) + (model->model.folder.empty() ? 0 : 1) + (shape->shape.empty() ? 0 : 1);
    if (modes_given != 1) {
      throw CLI::ValidationError("bench",
                                 "needed one of a MODEL, --shape, --policy-trace and --policy-synthetic");
    }
    model->json = options->json;
    model->seed = options->seed;
    shape->json = options->json;
    shape->seed = options->seed;
    shape->prefill = model->prefill;
    shape->decode = model->decode;
    if (!model->steps.depth.empty()) shape->depth = model->steps.depth;
    if (!model->steps.rows.empty()) shape->rows = model->steps.rows;
    shape->chunk = model->chunk;
    shape->backend = model->model.engine.backend;
    shape->threads = model->model.engine.threads;
    shape->device = model->model.engine.device;
    shape->exact = model->model.engine.exact;
    shape->kv_q8 = model->model.engine.kv_q8;
    shape->device_pool = model->model.engine.device_pool;
    shape->pool = model->model.engine.pool;
    shape->in_place = model->model.engine.streaming.in_place;
    invocation.run = [options, model, shape, replays] {
      const auto result = replays                ? compare_policies(*options)
                          : shape->shape.empty() ? bench_model(*model)
                                                 : bench_shape(*shape);
      return result.ok() ? kDone : fail(result.error());
    };
  });
}

}  // namespace sluice::cli

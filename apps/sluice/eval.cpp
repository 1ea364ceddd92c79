// sluice eval: perplexity, recall, draft agreement and tool calls on a suite; statistics for sluice pack.
#include "engine/eval.h"

#include <fmt/format.h>

#include <memory>

#include "base/file.h"
#include "base/json.h"
#include "command.h"
#include "engine/collect_importance.h"
#include "terminal.h"

namespace sluice::cli {
namespace {

struct EvalOptions {
  ModelOptions model;
  std::vector<std::string> suites;
  std::string golden;
  std::string against;     // a model to measure the divergence from
  std::string importance;  // file to write
  std::string text;        // to collect it on
  bool json = false;
};

constexpr std::uint64_t kMostText = std::uint64_t{256} << 20;

Result<engine::EvalSuite> read_suite(const EvalOptions& options) {
  engine::EvalSuite suite;
  for (const std::string& path : options.suites) SLUICE_TRY(engine::add_eval_suite(path, suite));
  if (!options.golden.empty()) SLUICE_TRY(engine::add_goldens(options.golden, suite));
  return suite;
}

Result<void> collect(engine::ChatEngine& engine, const EvalOptions& options) {
  SLUICE_ASSIGN(const auto text, read_text_file(options.text, kMostText));
  SLUICE_ASSIGN(const auto ids, engine.encode(text));
  if (ids.empty()) return make_error(ErrorCode::kInvalidArgument, "{}: no text to collect on", options.text);
  SLUICE_ASSIGN(const auto collector, engine::ImportanceCollector::create(engine.model()));
  ProgressBar bar("collecting");
  SLUICE_TRY(collector->run(ids, [&](std::int64_t done, std::int64_t total) {
    bar.update(static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total));
  }));
  bar.clear();
  SLUICE_TRY(collector->write(options.importance));
  const std::int64_t none = collector->unreached();
  if (options.json) {
    print_out("{}\n", dump_json({{"importance", options.importance},
                                 {"tokens", collector->tokens()},
                                 {"unreached_experts", none}},
                                2));
    return {};
  }
  print_out("{}: importance of {} tokens", options.importance, collector->tokens());
  if (none > 0) print_out("; {} experts were not reached", none);
  print_out("\n");
  return {};
}

void print_json(const engine::EvalResult& r) {
  Json out{{"windows", r.windows},
           {"ppl_sparse", r.perplexity_sparse},
           {"ppl_dense", r.perplexity_dense},
           {"recall_top", r.recall_top},
           {"recall_all", r.recall_all},
           {"mtp_agreement", r.mtp_agreement},
           {"mtp_agreement_per_stream", r.mtp_agreement_per_stream},
           {"drafts", r.drafts},
           {"goldens", r.goldens},
           {"goldens_same", r.goldens_same},
           {"tool_calls", r.tool_calls},
           {"tool_calls_right", r.tool_calls_right},
           {"tool_calls_broken", r.tool_calls_broken},
           {"different", r.different},
           {"losses_sparse", r.losses_sparse},
           {"losses_dense", r.losses_dense}};
  if (r.compared > 0) {
    out["divergence"] = r.divergence;
    out["divergences"] = r.divergences;
  }
  print_out("{}\n", dump_json(out, 2));
}

Result<void> evaluate(EvalOptions& options) {
  SLUICE_ASSIGN(const auto suite, read_suite(options));
  options.model.engine.mtp = true;
  ProgressBar loading("loading");
  options.model.engine.on_pack = [&](std::uint64_t done, std::uint64_t total) {
    loading.update("packing", done, total);
  };
  options.model.engine.on_load = [&](std::uint64_t done, std::uint64_t total) {
    loading.update("loading", done, total);
  };
  SLUICE_ASSIGN(const auto engine, engine::ChatEngine::open(options.model.folder, options.model.engine));
  loading.clear();
  if (!options.importance.empty()) {
    SLUICE_TRY(collect(*engine, options));
    if (options.suites.empty() && options.golden.empty()) return {};
  }
  ProgressBar bar("measuring");
  const engine::EvalProgress progress = [&](std::string_view what, std::int64_t done, std::int64_t total) {
    bar.update(what, static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total));
  };
  SLUICE_ASSIGN(auto r, engine::evaluate(*engine, suite, progress));
  if (!options.against.empty()) {
    EngineOptions reference = options.model.engine;
    reference.experts = 0;
    reference.mtp = false;
    SLUICE_ASSIGN(const auto other, engine::ChatEngine::open(options.against, reference));
    SLUICE_TRY(engine::compare(*engine, *other, suite, r, progress));
  }
  bar.clear();
  if (options.json) {
    print_json(r);
    return {};
  }
  if (r.windows > 0) {
    print_out("perplexity         {:.6f}  ({} windows of 512 tokens)\n", r.perplexity_sparse, r.windows);
    print_out("perplexity, dense  {:.6f}\n", r.perplexity_dense);
  }
  if (r.top_items > 0) print_out("recall, top        {:.4f}    ({} words)\n", r.recall_top, r.top_items);
  if (r.all_items > 0) print_out("recall, all        {:.4f}    ({} words)\n", r.recall_all, r.all_items);
  if (r.drafts > 0) {
    print_out("draft agreement    {:.4f}    ({} drafts; {:.4f} with the hidden norm for each stream)\n",
              r.mtp_agreement, r.drafts, r.mtp_agreement_per_stream);
  }
  if (r.compared > 0)
    print_out("divergence         {:.6f}  (nats a token from {})\n", r.divergence, options.against);
  if (r.goldens > 0) print_out("golden answers     {} of {}\n", r.goldens_same, r.goldens);
  if (r.tool_calls > 0) {
    print_out("tool calls         {} of {}  ({} do not parse as one)\n", r.tool_calls_right, r.tool_calls,
              r.tool_calls_broken);
  }
  for (const std::string& name : r.different) print_out("  otherwise: {}\n", name);
  return {};
}

}  // namespace

void add_eval(CLI::App& app, Invocation& invocation) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* command =
      add_command(app, "eval", "Measure answers on a suite, or collect statistics for sluice pack.",
                  "sluice eval models/demo --suite tests/data/demo/eval.json\n"
                  "  sluice eval models/demo --collect-importance importance.safetensors --text words.txt");
  options->model.add_to(*command, true);
  auto* suite =
      command->add_option("--suite", options->suites,
                          "JSON file: held_out, recall_top, recall_all, tools, tool_calls; repeatable");
  auto* golden =
      command->add_option("--golden", options->golden, "JSON file of answers that should come back");
  command
      ->add_option("--against", options->against,
                   "also the divergence from this model's distributions on held_out (both are loaded)")
      ->needs(suite);
  auto* importance =
      command->add_option("--collect-importance", options->importance,
                          "file to write: what the experts' inputs are on a text, for sluice pack");
  auto* text = command->add_option("--text", options->text, "text file, special tokens spelled out");
  importance->needs(text);
  text->needs(importance);
  command->add_flag("--json", options->json, "JSON output");
  command->callback([=, &invocation] {
    if (suite->count() + golden->count() + importance->count() == 0) {
      throw CLI::RequiredError("--suite, --golden or --collect-importance");
    }
    invocation.run = [options] {
      const auto result = evaluate(*options);
      return result.ok() ? kDone : fail(result.error());
    };
  });
}

}  // namespace sluice::cli

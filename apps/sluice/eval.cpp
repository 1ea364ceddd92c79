// sluice eval: perplexity, recall and draft agreement on a suite.
#include "engine/eval.h"

#include <fmt/format.h>

#include <memory>

#include "base/json.h"
#include "command.h"
#include "terminal.h"

namespace sluice::cli {
namespace {

struct EvalOptions {
  ModelOptions model;
  std::string suite;
  bool json = false;
};

Result<void> evaluate(EvalOptions& options) {
  SLUICE_ASSIGN(const auto suite, engine::load_eval_suite(options.suite));
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
  ProgressBar bar("measuring");
  SLUICE_ASSIGN(
      const auto r,
      engine::evaluate(*engine, suite, [&](std::string_view what, std::int64_t done, std::int64_t total) {
        bar.update(what, static_cast<std::uint64_t>(done), static_cast<std::uint64_t>(total));
      }));
  bar.clear();
  if (options.json) {
    print_out("{}\n", dump_json({{"windows", r.windows},
                                 {"ppl_sparse", r.perplexity_sparse},
                                 {"ppl_dense", r.perplexity_dense},
                                 {"recall_top", r.recall_top},
                                 {"recall_all", r.recall_all},
                                 {"mtp_agreement", r.mtp_agreement},
                                 {"mtp_agreement_per_stream", r.mtp_agreement_per_stream},
                                 {"drafts", r.drafts}},
                                2));
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
  return {};
}

}  // namespace

void add_eval(CLI::App& app, Invocation& invocation) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* command = add_command(app, "eval", "Measure perplexity, recall and draft agreement on a suite.",
                                  "sluice eval models/demo --suite tests/data/demo/eval.json");
  options->model.add_to(*command, true);
  command->add_option("--suite", options->suite, "JSON file: held_out, recall_top, recall_all")->required();
  command->add_flag("--json", options->json, "JSON output");
  command->callback([options, &invocation] {
    invocation.run = [options] {
      const auto result = evaluate(*options);
      return result.ok() ? kDone : fail(result.error());
    };
  });
}

}  // namespace sluice::cli

// sluice run: one prompt, one answer.
#include <fmt/format.h>

#include <cstdio>

#include "answer.h"
#include "base/json.h"
#include "command.h"
#include "engine/chat_engine.h"
#include "experts/statistics_report.h"
#include "stats_options.h"
#include "terminal.h"

namespace sluice::cli {
namespace {

struct RunOptions {
  ModelOptions model;
  AnswerOptions answer;
  StatisticsOptions statistics;
  std::string prompt;
  std::string system;
  std::string effort;
  bool raw = false;
  bool no_think = false;
  bool json = false;
};

Result<std::string> prompt_text(const RunOptions& options, const engine::ChatEngine& engine) {
  if (options.raw) return options.prompt;
  Json messages = Json::array();
  if (!options.system.empty()) messages.push_back({{"role", "system"}, {"content", options.system}});
  messages.push_back({{"role", "user"}, {"content", options.prompt}});
  Json template_options = {{"add_generation_prompt", true}, {"enable_thinking", !options.no_think}};
  if (!options.effort.empty()) template_options["reasoning_effort"] = options.effort;
  return engine.render(messages, template_options);
}

Result<int> run(RunOptions& options) {
  if (options.prompt.empty())
    return make_error(ErrorCode::kInvalidArgument, "empty prompt: needed some text");
  SLUICE_TRY(engine::check_sampling(options.answer.sampling));
  ProgressBar loading("loading");
  options.model.engine.on_pack = [&](std::uint64_t done, std::uint64_t total) {
    loading.update("packing", done, total);
  };
  options.model.engine.on_load = [&](std::uint64_t done, std::uint64_t total) {
    loading.update("loading", done, total);
  };
  SLUICE_ASSIGN(const auto engine, engine::ChatEngine::open(options.model.folder, options.model.engine));
  loading.clear();
  SLUICE_ASSIGN(const auto prompt, prompt_text(options, *engine));
  SLUICE_ASSIGN(const auto session, engine->new_session());
  options.statistics.begin(engine->model());
  options.answer.quiet = options.json;
  SLUICE_ASSIGN(const auto routes,
                options.statistics.record_routes(engine->model(), options.model.engine.experts));
  const InterruptGuard guard;
  SLUICE_ASSIGN(const auto generation, answer(*session, prompt, options.answer));
  if (routes) SLUICE_TRY(routes->finish());
  SLUICE_TRY(options.statistics.write_file(engine->model().statistics()));
  if (options.json) {
    print_out("{}\n", dump_json(generation_json(generation), 2));
  } else {
    if (options.statistics.print) {
      // A table for people; for programs what --json has.
      if (errors_are_terminal()) {
        print_error(summary_line(generation) + "\n");
        print_error(experts::statistics_report(engine->model().statistics()));
      } else {
        print_error(dump_json(statistics_json(generation), 2) + "\n");
      }
    } else if (errors_are_terminal()) {
      print_error(summary_line(generation) + "\n");
    }
  }
  return kDone;
}

}  // namespace

void add_run(CLI::App& app, Invocation& invocation) {
  auto options = std::make_shared<RunOptions>();
  CLI::App* command = add_command(app, "run", "Answer one prompt; the text streams to standard output.",
                                  "sluice run models/demo \"Define glacier.\" --no-think --temperature 0");
  options->model.add_to(*command, true);
  command->add_option("PROMPT", options->prompt, "what to ask")->required();
  command->add_flag("--raw", options->raw, "the prompt as it is, without the chat template");
  command->add_option("--system", options->system, "a system message before the prompt");
  command->add_flag("--no-think", options->no_think, "answer without reasoning first");
  command->add_option("--effort", options->effort, "reasoning effort: xhigh, medium or low");
  command->add_flag("--show-thinking", options->answer.show_thinking,
                    "print the reasoning too when output is piped");
  command
      ->add_option("--max-tokens", options->answer.max_tokens,
                   "tokens to generate at most (default: the context)")
      ->check(kCount);
  command->add_option("--stop", options->answer.stop, "end the answer before this text (may be repeated)");
  add_sampling(*command, options->answer.sampling);
  command->add_flag("--json", options->json, "one JSON object instead of streamed text");
  options->statistics.add_to(*command);
  command->callback([options, &invocation] {
    invocation.run = [options] {
      const auto result = run(*options);
      return result.ok() ? result.value() : fail(result.error());
    };
  });
}

}  // namespace sluice::cli

// sluice chat: a conversation at the terminal.
#include <editline/readline.h>
#include <fmt/format.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>

#include "answer.h"
#include "base/json.h"
#include "command.h"
#include "engine/chat_engine.h"
#include "stats_options.h"
#include "terminal.h"

namespace sluice::cli {
namespace {

struct ChatOptions {
  ModelOptions model;
  AnswerOptions answer;
  StatisticsOptions statistics;
  std::string system;
  std::string effort;
  bool no_think = false;
};

constexpr const char* kHelp =
    "/new        forget the conversation\n"
    "/think      reason before answering (/nothink: do not)\n"
    "/help       this list\n"
    "/exit       end (or Ctrl-D); Ctrl-C ends an answer\n";

/// Lines from the terminal with editing and history, or from a pipe as they are.
class LineReader {
 public:
  LineReader() : interactive_(::isatty(STDIN_FILENO) != 0 && output_is_terminal()) {
    if (!interactive_) return;
    std::setlocale(LC_CTYPE, "");  // or letters beyond ASCII could not be typed
    ::using_history();
  }
  std::optional<std::string> next() {
    std::string line;
    if (!interactive_) {
      if (!std::getline(std::cin, line)) return std::nullopt;
      if (!line.empty() && line.back() == '\r') line.pop_back();
      return line;
    }
    char* typed = ::readline("> ");
    if (typed == nullptr) return std::nullopt;
    line = typed;
    if (!line.empty()) ::add_history(typed);
    std::free(typed);
    return line;
  }
  [[nodiscard]] bool interactive() const { return interactive_; }

 private:
  bool interactive_;
};

Result<Generation> reply_to(engine::ChatEngine& engine, Session& session, const Json& messages,
                            const Json& template_options, const AnswerOptions& options) {
  SLUICE_ASSIGN(const auto prompt, engine.render(messages, template_options));
  return answer(session, prompt, options);
}

Result<void> talk(ChatOptions& options, engine::ChatEngine& engine, Session& session) {
  LineReader lines;
  Json messages = Json::array();
  const auto begin = [&] {
    messages = Json::array();
    if (!options.system.empty()) messages.push_back({{"role", "system"}, {"content", options.system}});
  };
  begin();
  bool thinks = !options.no_think;
  if (lines.interactive()) print_out("{}", kHelp);
  while (const auto line = lines.next()) {
    if (line->find_first_not_of(" \t\r") == std::string::npos) continue;
    if (*line == "/exit" || *line == "/quit") break;
    if (*line == "/help") {
      write_out(kHelp);
      continue;
    }
    if (*line == "/new") {
      begin();
      continue;
    }
    if (*line == "/think" || *line == "/nothink") {
      thinks = *line == "/think";
      continue;
    }
    messages.push_back({{"role", "user"}, {"content", *line}});
    Json template_options = {{"add_generation_prompt", true}, {"enable_thinking", thinks}};
    if (!options.effort.empty()) template_options["reasoning_effort"] = options.effort;
    const InterruptGuard guard;
    auto generation = reply_to(engine, session, messages, template_options, options.answer);
    if (!generation.ok()) {
      // A prompt that does not fit or was interrupted does not end a conversation at a terminal.
      if (!lines.interactive()) return generation.error();
      fail(generation.error());
      messages.erase(messages.size() - 1);
      continue;
    }
    if (std::ferror(stdout) != 0) break;  // nobody reads any more
    if (errors_are_terminal()) print_error(summary_line(generation.value()) + "\n");
    Json reply = {{"role", "assistant"}, {"content", generation->answer}};
    if (!generation->reasoning.empty()) reply["reasoning_content"] = generation->reasoning;
    messages.push_back(std::move(reply));
  }
  return {};
}

Result<void> chat(ChatOptions& options) {
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
  SLUICE_ASSIGN(const auto session, engine->new_session());
  SLUICE_ASSIGN(const auto routes,
                options.statistics.record_routes(engine->model(), options.model.engine.experts));
  SLUICE_TRY(talk(options, *engine, *session));
  return routes ? routes->finish() : Result<void>();
}

}  // namespace

void add_chat(CLI::App& app, Invocation& invocation) {
  auto options = std::make_shared<ChatOptions>();
  CLI::App* command = add_command(app, "chat", "Talk with the model; lines can be edited and recalled.",
                                  "sluice chat models/demo --no-think");
  options->model.add_to(*command, true);
  command->add_option("--system", options->system, "a system message at the beginning");
  command->add_flag("--no-think", options->no_think, "answer without reasoning first");
  command->add_option("--effort", options->effort, "reasoning effort: xhigh, medium or low");
  command->add_flag("--show-thinking", options->answer.show_thinking,
                    "print the reasoning too when output is piped");
  command
      ->add_option("--max-tokens", options->answer.max_tokens,
                   "tokens of an answer at most (default: the context)")
      ->check(kCount);
  add_sampling(*command, options->answer.sampling);
  options->statistics.add_routes_to(*command);
  command->callback([options, &invocation] {
    invocation.run = [options] {
      const auto result = chat(*options);
      return result.ok() ? kDone : fail(result.error());
    };
  });
}

}  // namespace sluice::cli

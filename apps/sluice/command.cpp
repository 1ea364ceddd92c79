#include "command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

namespace sluice::cli {

int fail(const Error& error) {
  std::string message = error.message;
  std::replace(message.begin(), message.end(), '\n', ' ');
  fmt::print(stderr, "sluice: {}\n", message);
  return kFailed;
}

CLI::App* add_command(CLI::App& app, const std::string& name, const std::string& description,
                      const std::string& example) {
  CLI::App* command = app.add_subcommand(name, description);
  command->footer("Example:\n  " + example);
  return command;
}

void ModelOptions::add_to(CLI::App& command, bool with_context) {
  command.add_option("MODEL", folder, "folder of the checkpoint")->required();
  command.add_option("--threads", engine.threads, "threads (default: one for each physical core)")
      ->check(CLI::Range(1, 1024));
  command.add_option("--backend", engine.backend, "cpu, or scalar: the slow reference")
      ->capture_default_str();
  if (with_context) {
    command.add_option("--ctx", engine.context, "tokens of context (default: the model's, at most 16384)")
        ->check(CLI::PositiveNumber);
  }
}

void add_sampling(CLI::App& command, Sampling& sampling) {
  command.add_option("--temperature", sampling.temperature, "0: always the likeliest token");
  command.add_option("--top-p", sampling.top_p,
                     "draw from the likeliest tokens that reach this probability; 1: off");
  command.add_option("--top-k", sampling.top_k, "draw from the k likeliest tokens; 0: off");
  command.add_option("--min-p", sampling.min_p, "drop tokens below this share of the likeliest; 0: off");
  command.add_option("--seed", sampling.seed, "repeat the same draws (default: new ones each time)");
}

}  // namespace sluice::cli

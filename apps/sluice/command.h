// What the commands share: registration, errors and exit codes.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "base/result.h"
#include "sluice/engine.h"

namespace sluice::cli {

// Exit codes: 0 done, 1 failed, 2 wrong usage.
constexpr int kDone = 0;
constexpr int kFailed = 1;
constexpr int kUsage = 2;

/// Counts of tokens: whole numbers from 1 on.
inline const CLI::Range kCount(std::int64_t{1}, std::int64_t{1} << 40);

/// A parsed subcommand sets `run`; main calls it once the whole command line is known to be right.
struct Invocation {
  std::function<int()> run;
};

void add_run(CLI::App& app, Invocation& invocation);
void add_chat(CLI::App& app, Invocation& invocation);
void add_text_tools(CLI::App& app, Invocation& invocation);  // tokenize, detokenize, render
void add_logits(CLI::App& app, Invocation& invocation);
void add_kernels(CLI::App& app, Invocation& invocation);
void add_inspect(CLI::App& app, Invocation& invocation);
void add_eval(CLI::App& app, Invocation& invocation);
void add_pack(CLI::App& app, Invocation& invocation);
void add_pull(CLI::App& app, Invocation& invocation);
void add_verify(CLI::App& app, Invocation& invocation);
void add_make_model(CLI::App& app, Invocation& invocation);
void add_plan(CLI::App& app, Invocation& invocation);
void add_stats(CLI::App& app, Invocation& invocation);
void add_bench(CLI::App& app, Invocation& invocation);

/// Prints "sluice: <message>" on standard error, as one line, and returns kFailed.
int fail(const Error& error);

/// A subcommand with its description and an example in its help.
CLI::App* add_command(CLI::App& app, const std::string& name, const std::string& description,
                      const std::string& example);

/// The options every command that computes has.
struct ModelOptions {
  std::string folder;
  EngineOptions engine;
  /// Adds MODEL, --threads, --backend, --device, --experts, --memory and, if asked, --ctx. A command that
  /// `packs` makes a store of a checkpoint on first use; one that does not reads it as it is.
  void add_to(CLI::App& command, bool with_context, bool packs = true);
};

/// An option whose value is a size such as 512M or 32G, at least one byte.
CLI::Option* add_size(CLI::App& command, const std::string& name, std::uint64_t& bytes,
                      const std::string& description);

/// --device-pool: a GPU's memory for experts; absent for auto, 0 for none.
void add_device_pool(CLI::App& command, std::optional<std::uint64_t>& bytes);

/// How experts come from disk: --no-io-uring, --no-lookahead, --in-place, --no-heat, --miss-experts,
/// --cut-weak.
void add_streaming(CLI::App& command, Streaming& streaming);

/// --memory: what a model may take.
void add_memory(CLI::App& command, std::uint64_t& bytes);

/// --backend and, with a place for it, --device: what computes.
void add_backend(CLI::App& command, std::string& backend, int* device);

/// --kv.
void add_kv(CLI::App& command, bool& q8);
/// --exact and --fast.
void add_exact(CLI::App& command, bool& exact);

/// The sampling options of run and chat.
void add_sampling(CLI::App& command, Sampling& sampling);

}  // namespace sluice::cli

// sluice pull: from a repository on a model hub to a packed store.
#include "pull/pull.h"

#include <algorithm>
#include <chrono>
#include <memory>

#include "base/json.h"
#include "base/units.h"
#include "command.h"
#include "engine/plan.h"
#include "engine/plan_report.h"
#include "pack_options.h"
#include "terminal.h"

namespace sluice::cli {
namespace {

struct PullCommand {
  hub::RepoName repo;
  std::string out;
  std::string store_dir;
  std::string keep_source;
  PackChoices choices;
  std::size_t shards_on_disk = 0;
  int workers = 4;
  bool json = false;

  [[nodiscard]] std::filesystem::path target() const {
    return out.empty() ? std::filesystem::path(store_dir) / (repo.name + ".sluice")
                       : std::filesystem::path(out);
  }
};

/// Whether the store will fit into this machine's memory, in a line; empty where that cannot be said.
std::string memory_verdict(const pull::PullPlan& plan, const pack::PackOptions& options) {
  const auto memory = engine::find_memory(0);
  if (!memory.ok()) return "";
  const auto made = engine::make_plan(plan.source.config(), &plan.source, {.packing = options}, *memory);
  return made.ok() ? engine::plan_verdict(*made) : "";
}

void show(const pull::PullPlan& plan, const pack::PackOptions& options) {
  print_error(fmt::format("{} at {:.12}: {} to download in {} shard{}, at most {} on disk; a store of {}\n",
                          plan.repository.name().shown(), plan.repository.commit(),
                          format_size(plan.download_bytes), plan.needed, plan.needed == 1 ? "" : "s",
                          format_size(plan.on_disk_bytes), format_size(plan.store_bytes)));
  if (const std::string verdict = memory_verdict(plan, options); !verdict.empty()) {
    print_error("memory: " + verdict + "\n");
  }
}

Result<void> run_pull(const PullCommand& command) {
  pull::PullOptions options;
  SLUICE_ASSIGN(options.pack, command.choices.to_options());
  SLUICE_ASSIGN(const auto endpoint, hub::Endpoint::from_environment());
  options.download.workers = command.workers;
  options.shards_on_disk = command.shards_on_disk;
  options.keep_source = command.keep_source;
  const InterruptGuard guard;
  options.download.http.connection.cancelled = [] { return InterruptGuard::interrupted(); };
  const bool terminal = errors_are_terminal();
  ProgressBar bar("pulling");
  if (terminal) {
    print_error(fmt::format("{}: looking at its files\n", command.repo.shown()));
    options.on_plan = [&](const pull::PullPlan& plan) {
      show(plan, options.pack);
      return Result<void>();
    };
    options.on_progress = [&](const pull::PullProgress& progress) {
      bar.update(fmt::format("shard {} of {}: {} of {} here, {} packed",
                             std::min(progress.shards_done + 1, progress.shards), progress.shards,
                             format_size(progress.downloaded), format_size(progress.to_download),
                             format_size(progress.packed)),
                 progress.downloaded + progress.packed, progress.to_download + progress.to_pack);
    };
  }
  const std::filesystem::path target = command.target();
  const auto start = std::chrono::steady_clock::now();
  auto report = pull::pull(endpoint, command.repo, target, options);
  bar.clear();
  if (!report.ok() && InterruptGuard::interrupted()) {
    return make_error(ErrorCode::kCancelled, "{}: interrupted; the same command goes on from there",
                      target.string());
  }
  if (!report.ok()) return report.error();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  const pack::PackReport& packed = report->pack;
  if (command.json) {
    print_out("{}\n", dump_json({{"store", target.string()},
                                 {"repository", command.repo.owner + "/" + command.repo.name},
                                 {"commit", report->commit},
                                 {"source", command.keep_source},
                                 {"bytes", packed.bytes},
                                 {"downloaded_bytes", report->fetched},
                                 {"resumed_bytes", packed.resumed},
                                 {"was_there", packed.was_there},
                                 {"threads", packed.threads},
                                 {"seconds", seconds}},
                                2));
    return {};
  }
  if (packed.was_there) {
    print_out("{}: there already, {} at {}\n", target.string(), command.repo.shown(), report->commit);
    return {};
  }
  print_out("{}: {} packed of {} at {}, {} downloaded in {:.1f} s", target.string(),
            format_size(packed.bytes), command.repo.shown(), report->commit, format_size(report->fetched),
            seconds);
  if (packed.resumed > 0) print_out(", {} packed before", format_size(packed.resumed));
  print_out("\n");
  return {};
}

}  // namespace

void add_pull(CLI::App& app, Invocation& invocation) {
  auto options = std::make_shared<PullCommand>();
  CLI::App* command =
      add_command(app, "pull", "Download a model from a hub and pack it, shard by shard.",
                  "sluice pull OWNER/NAME -o flash.sluice --experts 4,2\n\n"
                  "Stopped or killed, the same command goes on where it was. HF_ENDPOINT names another hub, "
                  "HF_TOKEN holds a token for it.");
  const auto parse = [options](const CLI::results_t& values) {
    auto repo = hub::parse_repo_name(values.back());
    if (!repo.ok()) throw CLI::ValidationError("REPOSITORY", repo.error().message);
    options->repo = std::move(repo).value();
    return true;
  };
  command->add_option("REPOSITORY", parse, "OWNER/NAME, or OWNER/NAME@REVISION: a branch, tag or commit")
      ->required()
      ->type_name("TEXT");
  command->add_option("-o,--out", options->out, "folder of the store (default: NAME.sluice)");
  command->add_option("--store-dir", options->store_dir,
                      "folder in which NAME.sluice is made (default: the current one)");
  options->choices.add_to(*command);
  command->add_option("--keep-source", options->keep_source,
                      "keep the checkpoint in this folder (default: delete each shard once it is packed)");
  command
      ->add_option("--shards-on-disk", options->shards_on_disk,
                   "shards that may lie on disk at once (default: 3, or as many as packing needs at once)")
      ->check(CLI::Range(1, 100000));
  command->add_option("--workers", options->workers, "connections at a time")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->add_flag("--json", options->json, "JSON output");
  command->callback([options, &invocation] {
    invocation.run = [options] {
      const auto result = run_pull(*options);
      return result.ok() ? kDone : fail(result.error());
    };
  });
}

}  // namespace sluice::cli

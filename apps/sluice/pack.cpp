// sluice pack and sluice verify: making packed stores, and checking them.
#include "pack/pack.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "base/json.h"
#include "base/units.h"
#include "command.h"
#include "pack/layout.h"
#include "pack/verify.h"
#include "pack_options.h"
#include "terminal.h"

namespace sluice::cli {
namespace {

struct PackCommand {
  std::string source;
  std::string out;
  PackChoices choices;
  bool json = false;
};

Result<void> run_pack(PackCommand& command) {
  SLUICE_ASSIGN(auto options, command.choices.to_options());
  SLUICE_ASSIGN(const auto source, store::open_source(command.source));
  const std::filesystem::path target =
      command.out.empty() ? default_target(command.source) : std::filesystem::path(command.out);
  const auto start = std::chrono::steady_clock::now();
  ProgressBar bar("packing");
  options.on_progress = [&](std::uint64_t done, std::uint64_t total) { bar.update(done, total); };
  SLUICE_ASSIGN(const auto report, pack::pack(*source, target, options));
  bar.clear();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (command.json) {
    print_out("{}\n", dump_json({{"store", target.string()},
                                 {"bytes", report.bytes},
                                 {"resumed_bytes", report.resumed},
                                 {"was_there", report.was_there},
                                 {"threads", report.threads},
                                 {"seconds", seconds}},
                                2));
    return {};
  }
  if (report.was_there) {
    print_out("{}: packed already, {}\n", target.string(), format_size(report.bytes));
    return {};
  }
  print_out("{}: {} packed in {:.1f} s", target.string(), format_size(report.bytes), seconds);
  if (report.resumed > 0) print_out(", {} of them before", format_size(report.resumed));
  print_out("\n");
  return {};
}

struct VerifyCommand {
  std::string store;
  bool quick = false;
  bool json = false;
  int jobs = 0;
};

Result<int> run_verify(const VerifyCommand& command) {
  ProgressBar bar("verifying");
  SLUICE_ASSIGN(const auto report, pack::verify_store(command.store, command.quick, command.jobs,
                                                      [&](std::uint64_t done, std::uint64_t total) {
                                                        bar.update(done, total);
                                                      }));
  bar.clear();
  if (command.json) {
    print_out("{}\n", dump_json({{"store", command.store},
                                 {"quick", command.quick},
                                 {"bytes", report.bytes},
                                 {"damaged", report.damaged},
                                 {"details", report.details}},
                                2));
    return report.damaged == 0 ? kDone : kFailed;
  }
  for (const std::string& detail : report.details) (void)fail(make_error(ErrorCode::kCorrupt, "{}", detail));
  if (report.damaged > 0) {
    print_out("{}: {} pieces damaged\n", command.store, report.damaged);
    return kFailed;
  }
  print_out("{}: whole{}\n", command.store,
            command.quick ? " as far as a quick look tells"
                          : fmt::format(", {} checked", format_size(report.bytes)));
  return kDone;
}

}  // namespace

void add_pack(CLI::App& app, Invocation& invocation) {
  auto options = std::make_shared<PackCommand>();
  CLI::App* command = add_command(app, "pack", "Make a packed store of a checkpoint: BF16, FP8 or MLX.",
                                  "sluice pack models/demo -o demo.sluice --experts 4,2");
  command->add_option("SOURCE", options->source, "folder of the checkpoint")->required();
  command->add_option("-o,--out", options->out, "folder of the store (default: SOURCE.sluice beside it)");
  options->choices.add_to(*command);
  command->add_flag("--json", options->json, "JSON output");
  command->callback([options, &invocation] {
    invocation.run = [options] {
      const auto result = run_pack(*options);
      return result.ok() ? kDone : fail(result.error());
    };
  });
}

void add_verify(CLI::App& app, Invocation& invocation) {
  auto options = std::make_shared<VerifyCommand>();
  CLI::App* command = add_command(app, "verify", "Compare every byte of a packed store with its checksums.",
                                  "sluice verify demo.sluice");
  command->add_option("STORE", options->store, "folder of the packed store")->required();
  command->add_flag("--quick", options->quick, "what opening checks: manifest, sizes, lists, samples");
  command->add_option("--jobs", options->jobs, "threads (default: one for each physical core)")
      ->check(CLI::Range(1, 1024));
  command->add_flag("--json", options->json, "JSON output");
  command->callback([options, &invocation] {
    invocation.run = [options] {
      const auto result = run_verify(*options);
      return result.ok() ? result.value() : fail(result.error());
    };
  });
}

}  // namespace sluice::cli

// sluice stats: what a run did with its experts and its time, from the file it wrote.
#include <memory>

#include "base/output_file.h"
#include "command.h"
#include "experts/statistics_plot.h"
#include "experts/statistics_report.h"
#include "terminal.h"

namespace sluice::cli {
namespace {

struct StatsOptions {
  std::string file;
  std::string plot;
  bool json = false;
};

Result<void> show(const StatsOptions& options) {
  SLUICE_ASSIGN(const auto statistics, experts::read_statistics(options.file));
  if (!options.plot.empty()) SLUICE_TRY(write_text_file(options.plot, experts::statistics_plot(statistics)));
  if (options.json) {
    print_out("{}\n", dump_json(statistics.to_json(), 2));
  } else {
    write_out(experts::statistics_report(statistics));
  }
  return {};
}

}  // namespace

void add_stats(CLI::App& app, Invocation& invocation) {
  auto options = std::make_shared<StatsOptions>();
  CLI::App* command = add_command(
      app, "stats", "Show what a run did with its experts and its time.",
      "sluice stats run.json --plot run.svg\n\nFILE is what `sluice run --stats-file FILE` wrote.");
  command->add_option("FILE", options->file, "statistics of a run")->required();
  command->add_option("--plot", options->plot, "also draw: SVG of the last steps and of each expert's use")
      ->type_name("FILE.svg");
  command->add_flag("--json", options->json, "JSON output, as in the file but checked");
  command->callback([options, &invocation] {
    invocation.run = [options] {
      const auto result = show(*options);
      return result.ok() ? kDone : fail(result.error());
    };
  });
}

}  // namespace sluice::cli

#include "stats_options.h"

#include "base/output_file.h"
#include "engine/tier.h"
#include "experts/statistics_report.h"
#include "terminal.h"

namespace sluice::cli {

void StatisticsOptions::add_to(CLI::App& command) {
  add_statistics_to(command);
  add_routes_to(command);
}

void StatisticsOptions::add_statistics_to(CLI::App& command) {
  command.add_flag("--stats", table, "print a table of measurements to standard error");
  command
      .add_option("--stats-file", file,
                  "write the measurements as JSON, with a time line of the last steps, for sluice stats")
      ->type_name("FILE");
}

void StatisticsOptions::add_routes_to(CLI::App& command) {
  command
      .add_option("--trace-routes", routes,
                  "write which experts every step chose, for sluice bench --policy-trace")
      ->type_name("FILE");
}

Result<std::unique_ptr<engine::RouteRecorder>> StatisticsOptions::record_routes(model::Model& model,
                                                                                int experts) const {
  if (routes.empty()) return std::unique_ptr<engine::RouteRecorder>();
  SLUICE_ASSIGN(const std::size_t tier, engine::tier_of(model.source(), experts));
  return engine::RouteRecorder::create(model, tier, routes);
}

Result<void> StatisticsOptions::tell(const experts::Statistics& statistics) const {
  if (!file.empty()) SLUICE_TRY(write_text_file(file, dump_json(statistics.to_json()) + "\n"));
  if (table) print_error(experts::statistics_report(statistics));
  return {};
}

}  // namespace sluice::cli

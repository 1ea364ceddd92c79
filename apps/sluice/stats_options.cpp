#include "stats_options.h"

#include "base/output_file.h"
#include "engine/tier.h"

namespace sluice::cli {

void StatisticsOptions::add_to(CLI::App& command) {
  command.add_flag("--stats", print,
                   "print measurements to standard error: a table on a terminal, else JSON");
  add_file_to(command);
  add_routes_to(command);
}

CLI::Option* StatisticsOptions::add_file_to(CLI::App& command) {
  return command
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

void StatisticsOptions::begin(model::Model& model) const {
  model.count_experts(print || !file.empty());
  if (!file.empty()) model.statistics().enable_timeline();
}

Result<void> StatisticsOptions::write_file(const experts::Statistics& statistics) const {
  if (file.empty()) return {};
  return write_text_file(file, dump_json(statistics.to_json()) + "\n");
}

}  // namespace sluice::cli

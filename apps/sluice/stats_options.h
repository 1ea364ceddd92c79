// The options by which a command tells what it did with its experts and its time.
#pragma once

#include <memory>
#include <string>

#include "command.h"
#include "engine/record_routes.h"
#include "experts/statistics.h"

namespace sluice::cli {

struct StatisticsOptions {
  bool table = false;  // --stats
  std::string file;    // --stats-file
  std::string routes;  // --trace-routes

  /// Adds all three.
  void add_to(CLI::App& command);
  void add_statistics_to(CLI::App& command);
  void add_routes_to(CLI::App& command);

  /// A recorder of the model's routes if they are asked for, else none. Its finish() writes the file.
  /// `experts`: the bits that were asked for, as in EngineOptions.
  [[nodiscard]] Result<std::unique_ptr<engine::RouteRecorder>> record_routes(model::Model& model,
                                                                             int experts) const;
  /// Prints and writes what is asked for.
  [[nodiscard]] Result<void> tell(const experts::Statistics& statistics) const;
};

}  // namespace sluice::cli

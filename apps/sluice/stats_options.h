// The options by which a command tells what it did with its experts and its time.
#pragma once

#include <memory>
#include <string>

#include "command.h"
#include "engine/record_routes.h"
#include "experts/statistics.h"

namespace sluice::cli {

struct StatisticsOptions {
  bool print = false;  // --stats
  std::string file;    // --stats-file
  std::string routes;  // --trace-routes

  /// Adds all three.
  void add_to(CLI::App& command);
  CLI::Option* add_file_to(CLI::App& command);
  void add_routes_to(CLI::App& command);

  /// Begins to count experts and to keep the time line where they will be wanted.
  void begin(model::Model& model) const;
  /// A recorder of the model's routes if they are asked for, else none. Its finish() writes the file.
  /// `experts`: the bits that were asked for, as in EngineOptions.
  [[nodiscard]] Result<std::unique_ptr<engine::RouteRecorder>> record_routes(model::Model& model,
                                                                             int experts) const;
  /// Writes the file if it is asked for.
  [[nodiscard]] Result<void> write_file(const experts::Statistics& statistics) const;
};

}  // namespace sluice::cli

// The model that a plan is for, however much of it is there.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "spec/config.h"
#include "store/source.h"

namespace sluice::engine {

struct PlannedModel {
  std::string name;  // as given
  std::string form;  // the source's form, or "config" without weights
  spec::ModelConfig config;
  std::unique_ptr<store::WeightSource> source;  // null without weights
};

/// Opens a checkpoint folder; a folder whose weights are not there yet, or a config.json file, for its config
/// alone; or a geometry by name. What exists as a path is not looked up as a name.
Result<PlannedModel> open_planned(const std::string& what);

}  // namespace sluice::engine

// A memory plan for people and for programs.
#pragma once

#include <string>

#include "base/json.h"
#include "engine/plan.h"
#include "engine/plan_model.h"

namespace sluice::engine {

/// One line: how the model fits, or what is missing and what could be done.
std::string plan_verdict(const MemoryPlan& plan);

/// A table, with the verdict as its last line.
std::string plan_text(const PlannedModel& model, const MemoryPlan& plan);

/// The same as one object; sizes in bytes.
Json plan_json(const PlannedModel& model, const MemoryPlan& plan);

}  // namespace sluice::engine

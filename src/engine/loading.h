// What a model is loaded with on this machine: precision, pool, rows of a prefill chunk, how records come.
#pragma once

#include "engine/plan.h"
#include "model/model.h"
#include "sluice/engine.h"

namespace sluice::engine {

/// Decides for `planned` and what the user asked for. Errors: as choose_pool, a precision that the model does
/// not have, an unreasonable weight.
Result<model::ModelOptions> choose_loading(const store::SourceForm& source, const PlanOptions& planned,
                                           const EngineOptions& options);

}  // namespace sluice::engine

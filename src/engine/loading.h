// What a model is loaded with on this machine: precision, pool, rows of a prefill chunk, how records come.
#pragma once

#include "engine/plan.h"
#include "model/model.h"
#include "sluice/engine.h"

namespace sluice::engine {

/// Decides for `planned` and what the user asked for, on the backend that it will be loaded to. Errors: as
/// choose_pool, a precision that the model does not have, an unreasonable weight.
Result<model::ModelOptions> choose_loading(const store::SourceForm& source, PlanOptions planned,
                                           const EngineOptions& options, const backend::Backend& backend);

}  // namespace sluice::engine

// What the bus between host and device gives, for the records of a model.
#pragma once

#include <cstddef>

#include "backend/backend.h"
#include "base/result.h"

namespace sluice::experts {

/// Bytes a second from pinned host memory to a device, in copies of `record_bytes` beside its operations, one
/// after the other without a pause, over about `seconds`.
Result<double> measure_bus(backend::Backend& backend, std::size_t record_bytes, double seconds);

}  // namespace sluice::experts

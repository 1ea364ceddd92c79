// JSON to values of a template.
#pragma once

#include "base/json.h"
#include "text/jinja/heap.h"
#include "text/jinja/value.h"

namespace sluice::text::jinja {

/// The value of `json`. Invalid UTF-8 in strings is replaced; binary values and nesting too deep are
/// failures.
Value from_json(Heap& heap, const Json& json);

}  // namespace sluice::text::jinja

// The functions every template can call.
#pragma once

#include <string>
#include <unordered_map>

#include "text/jinja/heap.h"
#include "text/jinja/value.h"

namespace sluice::text::jinja {

/// Adds range, dict, namespace, raise_exception and strftime_now, except where a variable has the name.
void add_functions(Heap& heap, std::unordered_map<std::string, Value>& names);

}  // namespace sluice::text::jinja

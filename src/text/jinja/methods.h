// Methods of strings, lists and dicts.
#pragma once

#include <string_view>

#include "text/jinja/arguments.h"
#include "text/jinja/value.h"

namespace sluice::text::jinja {

using MethodFunction = Value (*)(Evaluator& evaluator, const Value& self, Args& args);

/// The method of that name on a value like `self`, or nullptr.
MethodFunction find_method(const Value& self, std::string_view name);

}  // namespace sluice::text::jinja

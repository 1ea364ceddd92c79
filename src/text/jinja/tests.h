// The tests after `is`.
#pragma once

#include <string_view>

#include "text/jinja/arguments.h"
#include "text/jinja/value.h"

namespace sluice::text::jinja {

using TestFunction = bool (*)(Evaluator& evaluator, const Value& input, Args& args);

/// The test of that name, or nullptr.
TestFunction find_test(std::string_view name);

}  // namespace sluice::text::jinja

// The filters templates may use.
#pragma once

#include <string_view>

#include "text/jinja/arguments.h"
#include "text/jinja/value.h"

namespace sluice::text::jinja {

using FilterFunction = Value (*)(Evaluator& evaluator, const Value& input, Args& args);

/// The filter of that name, or nullptr.
FilterFunction find_filter(std::string_view name);

/// The parts of find_filter: filters of text and numbers, and those that walk sequences.
FilterFunction find_text_filter(std::string_view name);
FilterFunction find_sequence_filter(std::string_view name);

}  // namespace sluice::text::jinja

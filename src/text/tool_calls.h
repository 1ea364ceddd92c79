// The tool calls in an answer, in the form that the model's chat template shows it.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace sluice::text {

struct ToolCall {
  std::string name;
  std::vector<std::pair<std::string, std::string>> arguments;  // in their order, values as written
  bool operator==(const ToolCall&) const = default;
};

struct ToolAnswer {
  std::string text;  // before the first call, white space at its end aside
  std::vector<ToolCall> calls;
};

/// Parses an answer without its end token:
///
///     <tool_call>
///     <function=NAME>
///     <parameter=KEY>
///     VALUE, of any number of lines
///     </parameter>
///     </function>
///     </tool_call>
///
/// with any number of parameters and of calls, white space between tags as one likes, and one newline at
/// either end of a value not part of it. An answer without calls is text alone.
///
/// kCorrupt, saying what was needed where: a tag that is missing or bent, an empty name, a parameter given
/// twice, text after a call.
Result<ToolAnswer> parse_tool_calls(std::string_view answer);

}  // namespace sluice::text

// JSON from files that may be hostile: bounded depth, errors as values, key order kept.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace sluice {

using Json = nlohmann::ordered_json;

/// Parses `text`. Errors name `what` and the byte where parsing stopped; nesting beyond 128 and
/// objects of more than 10,000 members are refused (kLimit).
Result<Json> parse_json(std::string_view text, std::string_view what);

/// Text of `value` for output; invalid UTF-8 inside strings is replaced, never thrown on.
std::string dump_json(const Json& value, int indent = -1);

}  // namespace sluice

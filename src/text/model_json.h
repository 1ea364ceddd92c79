// JSON of tokenizer files: objects with hundreds of thousands of keys, order of no importance.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.h"

namespace sluice::text {

/// Sorted keys: the base layer's order-keeping objects search linearly, which a vocabulary cannot afford.
using ModelJson = nlohmann::json;

/// Parses `text`. Errors name `what`; nesting beyond 64 is refused.
Result<ModelJson> parse_model_json(std::string_view text, std::string_view what);

/// The member `key` of an object; nullptr when absent, null, or `object` is no object.
const ModelJson* member(const ModelJson& object, const char* key);

/// The member as a string, or "" when it is absent; kCorrupt for another type.
Result<std::string> string_member(const ModelJson& object, const char* key, std::string_view what);

/// The member as a bool, or `otherwise` when it is absent; kCorrupt for another type.
Result<bool> bool_member(const ModelJson& object, const char* key, bool otherwise, std::string_view what);

}  // namespace sluice::text

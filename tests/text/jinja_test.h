// Shorthand of the template tests.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "text/jinja/template.h"

namespace sluice::text::jinja {

inline Result<std::string> try_render(std::string_view source, const Json& variables = Json::object(),
                                      const Limits& limits = {}) {
  SLUICE_ASSIGN(const Template parsed, Template::parse(source, "test"));
  return parsed.render(variables, limits);
}

/// The text, or "error: " and the message.
inline std::string render(std::string_view source, const Json& variables = Json::object()) {
  auto text = try_render(source, variables);
  return text.ok() ? *text : "error: " + text.error().message;
}

}  // namespace sluice::text::jinja

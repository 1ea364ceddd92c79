// Template source to tree.
#pragma once

#include <string_view>

#include "text/jinja/ast.h"

namespace sluice::text::jinja {

/// Parses `source` (valid UTF-8). Throws Failure: kCorrupt for a syntax error, kUnsupported for tags that
/// reach other templates, kLimit for nesting too deep; the message begins with the line.
ast::Block parse_template(std::string_view source);

}  // namespace sluice::text::jinja

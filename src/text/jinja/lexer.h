// Cuts a template into tokens and settles white space around tags.
#pragma once

#include <string_view>
#include <vector>

#include "text/jinja/token.h"

namespace sluice::text::jinja {

/// Tokens of `source` (valid UTF-8), kEnd last. Comments are gone and raw blocks are data. White space
/// follows the reference with trim_blocks and lstrip_blocks on: the newline after a block or comment goes, so
/// does white space before one that begins its line; `-` strips all white space on its side, `+` keeps it.
/// One newline at the end of the source is dropped. Throws Failure naming the line.
std::vector<Token> tokenize(std::string_view source);

}  // namespace sluice::text::jinja

// The words of a template.
#pragma once

#include <cstdint>
#include <string>

namespace sluice::text::jinja {

enum class TokenKind {
  kData,  // text outside all tags
  kVariableBegin,
  kVariableEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 1;
  std::string text;  // decoded for strings; the operator, name or data otherwise
  std::int64_t integer = 0;
  double number = 0;
};

}  // namespace sluice::text::jinja

// Expressions of the template language, in the precedence of the reference.
#pragma once

#include <optional>

#include "text/jinja/ast.h"
#include "text/jinja/token_stream.h"

namespace sluice::text::jinja {

class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream& tokens) : tokens_(tokens) {}

  /// An expression; `conditional` off leaves an `if` after it to the caller.
  ast::ExprPtr expression(bool conditional = true);

  /// An expression, or a tuple without parentheses.
  ast::ExprPtr expression_or_tuple(bool conditional = true);

  /// name | name(args) | ... of filter blocks: filters without input.
  std::vector<ast::ExprPtr> filters();

  /// Arguments in parentheses.
  ast::Arguments arguments();

  /// One primary with its attributes, calls and filters.
  ast::ExprPtr unary(bool with_filters = true);

 private:
  ast::ExprPtr either();
  ast::ExprPtr both();
  ast::ExprPtr negation();
  ast::ExprPtr comparison();
  ast::ExprPtr sum();
  ast::ExprPtr concatenation();
  ast::ExprPtr product();
  ast::ExprPtr power();
  ast::ExprPtr primary();
  ast::ExprPtr postfix(ast::ExprPtr value);
  ast::ExprPtr filters_and_tests(ast::ExprPtr value);
  ast::ExprPtr subscript(ast::ExprPtr object);
  ast::ExprPtr test(ast::ExprPtr input);
  ast::ExprPtr filter(ast::ExprPtr input);
  ast::ExprPtr list();
  ast::ExprPtr dict();
  ast::ExprPtr parenthesized();
  bool ends_tuple() const;
  std::optional<ast::CompareOp> compare_operator();

  template <class Node>
  ast::ExprPtr make(int line, Node node);

  TokenStream& tokens_;
};

}  // namespace sluice::text::jinja

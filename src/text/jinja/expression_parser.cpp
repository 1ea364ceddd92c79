#include "text/jinja/expression_parser.h"

#include <algorithm>

namespace sluice::text::jinja {
namespace {

using namespace ast;

int depth_of(const ExprPtr& e) {
  return e == nullptr ? 0 : e->depth;
}
int depth_of(const std::vector<ExprPtr>& list) {
  int depth = 0;
  for (const ExprPtr& e : list) depth = std::max(depth, e->depth);
  return depth;
}
int depth_of(const Arguments& a) {
  int depth = std::max({depth_of(a.positional), depth_of(a.more_positional), depth_of(a.more_named)});
  for (const auto& [name, value] : a.named) depth = std::max(depth, value->depth);
  return depth;
}

struct DepthBelow {
  template <class Leaf>
  int operator()(const Leaf&) const {
    return 0;
  }
  int operator()(const ListDisplay& n) const { return depth_of(n.items); }
  int operator()(const DictDisplay& n) const {
    int depth = 0;
    for (const auto& [key, value] : n.items) depth = std::max({depth, key->depth, value->depth});
    return depth;
  }
  int operator()(const Unary& n) const { return depth_of(n.operand); }
  int operator()(const Binary& n) const { return std::max(depth_of(n.left), depth_of(n.right)); }
  int operator()(const Concat& n) const { return depth_of(n.parts); }
  int operator()(const Compare& n) const {
    int depth = depth_of(n.first);
    for (const auto& [op, value] : n.rest) depth = std::max(depth, value->depth);
    return depth;
  }
  int operator()(const Conditional& n) const {
    return std::max({depth_of(n.condition), depth_of(n.then), depth_of(n.otherwise)});
  }
  int operator()(const Attribute& n) const { return depth_of(n.object); }
  int operator()(const Index& n) const { return std::max(depth_of(n.object), depth_of(n.key)); }
  int operator()(const Slice& n) const {
    return std::max({depth_of(n.object), depth_of(n.start), depth_of(n.stop), depth_of(n.step)});
  }
  int operator()(const Call& n) const { return std::max(depth_of(n.callee), depth_of(n.arguments)); }
  int operator()(const Filter& n) const { return std::max(depth_of(n.input), depth_of(n.arguments)); }
  int operator()(const Test& n) const { return std::max(depth_of(n.input), depth_of(n.arguments)); }
};

}  // namespace

template <class Node>
ExprPtr ExpressionParser::make(int line, Node node) {
  const int depth = 1 + DepthBelow{}(node);
  if (depth > kMaxChain) {
    fail(ErrorCode::kLimit, "line {}: an expression of more than {} levels", line, kMaxChain);
  }
  auto expr = std::make_unique<Expr>();
  expr->line = line;
  expr->depth = depth;
  expr->node = std::move(node);
  return expr;
}

ExprPtr ExpressionParser::expression(bool conditional) {
  const TokenStream::Nest nest(tokens_);
  if (!conditional) return either();
  const int line = tokens_.line();
  ExprPtr value = either();
  while (tokens_.skip_name("if")) {
    ExprPtr condition = either();
    ExprPtr otherwise;
    if (tokens_.skip_name("else")) otherwise = expression();
    value = make(line, Conditional{std::move(condition), std::move(value), std::move(otherwise)});
  }
  return value;
}

bool ExpressionParser::ends_tuple() const {
  return tokens_.is(TokenKind::kVariableEnd) || tokens_.is(TokenKind::kBlockEnd) || tokens_.is_op(")") ||
         tokens_.is_name("recursive") || tokens_.is_name("if");
}

ExprPtr ExpressionParser::expression_or_tuple(bool conditional) {
  const int line = tokens_.line();
  ExprPtr first = expression(conditional);
  if (!tokens_.is_op(",")) return first;
  ListDisplay tuple;
  tuple.tuple = true;
  tuple.items.push_back(std::move(first));
  while (tokens_.skip_op(",") && !ends_tuple()) tuple.items.push_back(expression(conditional));
  return make(line, std::move(tuple));
}

ExprPtr ExpressionParser::either() {
  const int line = tokens_.line();
  ExprPtr left = both();
  while (tokens_.skip_name("or")) left = make(line, Binary{BinaryOp::kOr, std::move(left), both()});
  return left;
}

ExprPtr ExpressionParser::both() {
  const int line = tokens_.line();
  ExprPtr left = negation();
  while (tokens_.skip_name("and")) left = make(line, Binary{BinaryOp::kAnd, std::move(left), negation()});
  return left;
}

ExprPtr ExpressionParser::negation() {
  const int line = tokens_.line();
  if (!tokens_.skip_name("not")) return comparison();
  const TokenStream::Nest nest(tokens_);
  return make(line, Unary{UnaryOp::kNot, negation()});
}

std::optional<CompareOp> ExpressionParser::compare_operator() {
  constexpr std::pair<std::string_view, CompareOp> kOps[] = {
      {"==", CompareOp::kEqual},        {"!=", CompareOp::kNotEqual}, {"<=", CompareOp::kLessEqual},
      {">=", CompareOp::kGreaterEqual}, {"<", CompareOp::kLess},      {">", CompareOp::kGreater}};
  for (const auto& [text, op] : kOps) {
    if (tokens_.skip_op(text)) return op;
  }
  if (tokens_.skip_name("in")) return CompareOp::kIn;
  if (tokens_.is_name("not") && tokens_.is_name("in", 1)) {
    tokens_.next();
    tokens_.next();
    return CompareOp::kNotIn;
  }
  return std::nullopt;
}

ExprPtr ExpressionParser::comparison() {
  const int line = tokens_.line();
  ExprPtr first = sum();
  Compare compare;
  while (const auto op = compare_operator()) compare.rest.emplace_back(*op, sum());
  if (compare.rest.empty()) return first;
  compare.first = std::move(first);
  return make(line, std::move(compare));
}

ExprPtr ExpressionParser::sum() {
  ExprPtr left = concatenation();
  for (;;) {
    const int line = tokens_.line();
    if (tokens_.skip_op("+")) {
      left = make(line, Binary{BinaryOp::kAdd, std::move(left), concatenation()});
    } else if (tokens_.skip_op("-")) {
      left = make(line, Binary{BinaryOp::kSubtract, std::move(left), concatenation()});
    } else {
      return left;
    }
  }
}

ExprPtr ExpressionParser::concatenation() {
  const int line = tokens_.line();
  ExprPtr first = product();
  if (!tokens_.is_op("~")) return first;
  Concat concat;
  concat.parts.push_back(std::move(first));
  while (tokens_.skip_op("~")) concat.parts.push_back(product());
  return make(line, std::move(concat));
}

ExprPtr ExpressionParser::product() {
  constexpr std::pair<std::string_view, BinaryOp> kOps[] = {{"*", BinaryOp::kMultiply},
                                                            {"/", BinaryOp::kDivide},
                                                            {"//", BinaryOp::kFloorDivide},
                                                            {"%", BinaryOp::kModulo}};
  ExprPtr left = power();
  for (;;) {
    const int line = tokens_.line();
    const auto* op = std::find_if(std::begin(kOps), std::end(kOps),
                                  [&](const auto& o) { return tokens_.skip_op(o.first); });
    if (op == std::end(kOps)) return left;
    left = make(line, Binary{op->second, std::move(left), power()});
  }
}

// Left to right, as the reference has it: 2 ** 3 ** 2 is 64.
ExprPtr ExpressionParser::power() {
  ExprPtr left = unary();
  for (;;) {
    const int line = tokens_.line();
    if (!tokens_.skip_op("**")) return left;
    left = make(line, Binary{BinaryOp::kPower, std::move(left), unary()});
  }
}

ExprPtr ExpressionParser::unary(bool with_filters) {
  const int line = tokens_.line();
  ExprPtr value;
  if (tokens_.is_op("-") || tokens_.is_op("+")) {
    const TokenStream::Nest nest(tokens_);
    const UnaryOp op = tokens_.next().text == "-" ? UnaryOp::kMinus : UnaryOp::kPlus;
    value = make(line, Unary{op, unary(false)});
  } else {
    value = primary();
  }
  value = postfix(std::move(value));
  return with_filters ? filters_and_tests(std::move(value)) : std::move(value);
}

ExprPtr ExpressionParser::primary() {
  const int line = tokens_.line();
  if (tokens_.is_op("(")) return parenthesized();
  if (tokens_.is_op("[")) return list();
  if (tokens_.is_op("{")) return dict();
  switch (tokens_.peek().kind) {
    case TokenKind::kName: {
      std::string name = tokens_.next().text;
      if (name == "true" || name == "True") return make(line, true);
      if (name == "false" || name == "False") return make(line, false);
      if (name == "none" || name == "None") return make(line, NoneLiteral{});
      return make(line, Name{std::move(name)});
    }
    case TokenKind::kString: {
      std::string text = tokens_.next().text;
      while (tokens_.is(TokenKind::kString)) text += tokens_.next().text;
      return make(line, std::move(text));
    }
    case TokenKind::kInteger:
      return make(line, tokens_.next().integer);
    case TokenKind::kFloat:
      return make(line, tokens_.next().number);
    default:
      tokens_.unexpected("an expression");
  }
}

ExprPtr ExpressionParser::parenthesized() {
  const int line = tokens_.line();
  tokens_.expect_op("(");
  if (tokens_.skip_op(")")) {
    ListDisplay empty;
    empty.tuple = true;
    return make(line, std::move(empty));
  }
  ExprPtr value = expression_or_tuple();
  tokens_.expect_op(")");
  return value;
}

ExprPtr ExpressionParser::list() {
  const int line = tokens_.line();
  tokens_.expect_op("[");
  ListDisplay list;
  while (!tokens_.is_op("]")) {
    if (!list.items.empty()) tokens_.expect_op(",");
    if (tokens_.is_op("]")) break;
    list.items.push_back(expression());
  }
  tokens_.expect_op("]");
  return make(line, std::move(list));
}

ExprPtr ExpressionParser::dict() {
  const int line = tokens_.line();
  tokens_.expect_op("{");
  DictDisplay dict;
  while (!tokens_.is_op("}")) {
    if (!dict.items.empty()) tokens_.expect_op(",");
    if (tokens_.is_op("}")) break;
    ExprPtr key = expression();
    tokens_.expect_op(":");
    ExprPtr value = expression();
    dict.items.emplace_back(std::move(key), std::move(value));
  }
  tokens_.expect_op("}");
  return make(line, std::move(dict));
}

ExprPtr ExpressionParser::postfix(ExprPtr value) {
  for (;;) {
    const int line = tokens_.line();
    if (tokens_.is_op("(")) {
      Arguments args = arguments();
      value = make(line, Call{std::move(value), std::move(args)});
    } else if (tokens_.is_op("[")) {
      value = subscript(std::move(value));
    } else if (tokens_.skip_op(".")) {
      if (tokens_.is(TokenKind::kInteger)) {
        value = make(line, Index{std::move(value), make(line, tokens_.next().integer)});
      } else {
        value = make(line, Attribute{std::move(value), tokens_.expect(TokenKind::kName, "a name").text});
      }
    } else {
      return value;
    }
  }
}

ExprPtr ExpressionParser::filters_and_tests(ExprPtr value) {
  for (;;) {
    const int line = tokens_.line();
    if (tokens_.skip_op("|")) {
      value = filter(std::move(value));
    } else if (tokens_.skip_name("is")) {
      value = test(std::move(value));
    } else if (tokens_.is_op("(")) {
      Arguments args = arguments();
      value = make(line, Call{std::move(value), std::move(args)});
    } else {
      return value;
    }
  }
}

ExprPtr ExpressionParser::subscript(ExprPtr object) {
  const int line = tokens_.line();
  tokens_.expect_op("[");
  const auto part = [this]() -> ExprPtr {
    if (tokens_.is_op(":") || tokens_.is_op("]")) return nullptr;
    return expression();
  };
  ExprPtr start = part();
  if (tokens_.skip_op(":")) {
    ExprPtr stop = part();
    ExprPtr step;
    if (tokens_.skip_op(":")) step = part();
    tokens_.expect_op("]");
    return make(line, Slice{std::move(object), std::move(start), std::move(stop), std::move(step)});
  }
  if (start == nullptr) tokens_.unexpected("a subscript");
  if (tokens_.is_op(",")) {
    ListDisplay tuple;
    tuple.tuple = true;
    tuple.items.push_back(std::move(start));
    while (tokens_.skip_op(",")) tuple.items.push_back(expression());
    start = make(line, std::move(tuple));
  }
  tokens_.expect_op("]");
  return make(line, Index{std::move(object), std::move(start)});
}

ExprPtr ExpressionParser::filter(ExprPtr input) {
  const int line = tokens_.line();
  std::string name = tokens_.expect(TokenKind::kName, "the name of a filter").text;
  while (tokens_.skip_op(".")) name += "." + tokens_.expect(TokenKind::kName, "a name").text;
  Arguments args;
  if (tokens_.is_op("(")) args = arguments();
  return make(line, Filter{std::move(input), std::move(name), std::move(args)});
}

std::vector<ExprPtr> ExpressionParser::filters() {
  std::vector<ExprPtr> list;
  do {
    list.push_back(filter(nullptr));
  } while (tokens_.skip_op("|"));
  return list;
}

ExprPtr ExpressionParser::test(ExprPtr input) {
  const int line = tokens_.line();
  Test test;
  test.negated = tokens_.skip_name("not");
  test.name = tokens_.expect(TokenKind::kName, "the name of a test").text;
  while (tokens_.skip_op(".")) test.name += "." + tokens_.expect(TokenKind::kName, "a name").text;
  const TokenKind kind = tokens_.peek().kind;
  const bool value = kind == TokenKind::kName || kind == TokenKind::kString || kind == TokenKind::kInteger ||
                     kind == TokenKind::kFloat || tokens_.is_op("[") || tokens_.is_op("{");
  const bool goes_on = tokens_.is_name("else") || tokens_.is_name("or") || tokens_.is_name("and");
  if (tokens_.is_op("(")) {
    test.arguments = arguments();
  } else if (value && !goes_on) {
    if (tokens_.is_name("is")) tokens_.error("tests with 'is' cannot be chained");
    test.arguments.positional.push_back(postfix(primary()));
  }
  test.input = std::move(input);
  return make(line, std::move(test));
}

Arguments ExpressionParser::arguments() {
  tokens_.expect_op("(");
  Arguments args;
  bool first = true;
  while (!tokens_.is_op(")")) {
    if (!first) {
      tokens_.expect_op(",");
      if (tokens_.is_op(")")) break;
    }
    first = false;
    if (tokens_.skip_op("*")) {
      if (args.more_positional || args.more_named) tokens_.error("'*' twice or after '**' in arguments");
      args.more_positional = expression();
    } else if (tokens_.skip_op("**")) {
      if (args.more_named) tokens_.error("'**' twice in arguments");
      args.more_named = expression();
    } else if (tokens_.is(TokenKind::kName) && tokens_.is_op("=", 1)) {
      std::string name = tokens_.next().text;
      tokens_.next();
      args.named.emplace_back(std::move(name), expression());
    } else {
      if (!args.named.empty() || args.more_positional || args.more_named) {
        tokens_.error("a positional argument after a named one");
      }
      args.positional.push_back(expression());
    }
  }
  tokens_.expect_op(")");
  return args;
}

}  // namespace sluice::text::jinja

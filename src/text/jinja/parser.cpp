#include "text/jinja/parser.h"

#include <algorithm>
#include <initializer_list>

#include "text/jinja/expression_parser.h"
#include "text/jinja/lexer.h"

namespace sluice::text::jinja {
namespace {

using namespace ast;

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)), expressions_(tokens_) {}

  Block run() { return block({}); }

 private:
  // Statements up to a tag named in `ends`, whose name is left to read; with none, up to the end.
  Block block(std::initializer_list<std::string_view> ends) {
    const TokenStream::Nest nest(tokens_);
    Block body;
    for (;;) {
      const int line = tokens_.line();
      switch (tokens_.peek().kind) {
        case TokenKind::kData:
          body.push_back({line, Text{tokens_.next().text}});
          break;
        case TokenKind::kVariableBegin: {
          tokens_.next();
          ExprPtr value = expressions_.expression_or_tuple();
          tokens_.expect(TokenKind::kVariableEnd, "'}}'");
          body.push_back({line, Output{std::move(value)}});
          break;
        }
        case TokenKind::kBlockBegin: {
          tokens_.next();
          if (!tokens_.is(TokenKind::kName)) tokens_.unexpected("the name of a tag");
          const std::string& name = tokens_.peek().text;
          if (std::find(ends.begin(), ends.end(), name) != ends.end()) return body;
          statement(body);
          break;
        }
        default:
          if (ends.size() == 0) return body;
          tokens_.unexpected(*(ends.end() - 1));
      }
    }
  }

  void end_tag() { tokens_.expect(TokenKind::kBlockEnd, "'%}'"); }

  // The rest of a block up to its end tag, both consumed.
  Block body_until(std::string_view end) {
    end_tag();
    Block body = block({end});
    tokens_.next();
    end_tag();
    return body;
  }

  void statement(Block& body) {
    const int line = tokens_.line();
    const std::string name = tokens_.next().text;
    const auto add = [&](auto node) { body.push_back({line, std::move(node)}); };
    if (name == "if") return add(if_statement());
    if (name == "for") return add(for_statement());
    if (name == "set") return set_statement(line, body);
    if (name == "macro") return add(macro_statement());
    if (name == "call") return add(call_statement());
    if (name == "with") return add(with_statement());
    if (name == "generation") return add(Plain{body_until("endgeneration")});
    if (name == "filter") {
      std::vector<ExprPtr> filters = expressions_.filters();
      return add(FilterBlock{std::move(filters), body_until("endfilter")});
    }
    if (name == "break" || name == "continue") {
      if (loops_ == 0) tokens_.error("'{}' outside a loop", name);
      end_tag();
      if (name == "break") return add(Break{});
      return add(Continue{});
    }
    constexpr std::string_view kElsewhere[] = {"include", "import",     "from", "extends",
                                               "block",   "autoescape", "trans"};
    if (std::find(std::begin(kElsewhere), std::end(kElsewhere), name) != std::end(kElsewhere)) {
      fail(ErrorCode::kUnsupported, "line {}: tag '{}' is not supported", line, name);
    }
    fail(ErrorCode::kCorrupt, "line {}: unknown tag '{}'", line, name);
  }

  If if_statement() {
    If node;
    ExprPtr condition = expressions_.expression_or_tuple(false);
    for (;;) {
      end_tag();
      const bool last = condition == nullptr;
      Block body = last ? block({"endif"}) : block({"elif", "else", "endif"});
      node.branches.push_back({std::move(condition), std::move(body)});
      const std::string tag = tokens_.next().text;
      if (tag == "endif") break;
      condition = tag == "elif" ? expressions_.expression_or_tuple(false) : nullptr;
    }
    end_tag();
    return node;
  }

  For for_statement() {
    For node;
    node.target = target(false);
    if (!tokens_.skip_name("in")) tokens_.unexpected("'in'");
    node.items = expressions_.expression_or_tuple(false);
    if (tokens_.skip_name("if")) node.filter = expressions_.expression();
    if (tokens_.is_name("recursive")) {
      fail(ErrorCode::kUnsupported, "line {}: recursive loops are not supported", tokens_.line());
    }
    end_tag();
    ++loops_;
    node.body = block({"else", "endfor"});
    --loops_;
    if (tokens_.next().text == "else") {
      end_tag();
      node.otherwise = block({"endfor"});
      tokens_.next();
    }
    end_tag();
    return node;
  }

  Target single_target(bool with_namespace) {
    if (tokens_.skip_op("(")) {
      Target inner = target(with_namespace);
      tokens_.expect_op(")");
      return inner;
    }
    const TokenStream::Nest nest(tokens_);
    Target one;
    one.name = tokens_.expect(TokenKind::kName, "a name to assign to").text;
    constexpr std::string_view kFixed[] = {"true", "false", "none", "True", "False", "None"};
    if (std::find(std::begin(kFixed), std::end(kFixed), one.name) != std::end(kFixed)) {
      tokens_.error("cannot assign to '{}'", one.name);
    }
    if (with_namespace && tokens_.skip_op(".")) {
      one.attribute = tokens_.expect(TokenKind::kName, "an attribute").text;
    }
    return one;
  }

  Target target(bool with_namespace) {
    const TokenStream::Nest nest(tokens_);
    Target first = single_target(with_namespace);
    if (!tokens_.is_op(",")) return first;
    Target all;
    all.unpacks = true;
    all.parts.push_back(std::move(first));
    while (tokens_.skip_op(",") && (tokens_.is(TokenKind::kName) || tokens_.is_op("(")) &&
           !tokens_.is_name("in")) {
      all.parts.push_back(single_target(with_namespace));
    }
    return all;
  }

  void set_statement(int line, Block& body) {
    Target to = target(true);
    if (tokens_.skip_op("=")) {
      ExprPtr value = expressions_.expression_or_tuple();
      end_tag();
      body.push_back({line, Set{std::move(to), std::move(value)}});
      return;
    }
    std::vector<ExprPtr> filters;
    if (tokens_.skip_op("|")) filters = expressions_.filters();
    Block inner = body_until("endset");
    body.push_back({line, SetBlock{std::move(to), std::move(filters), std::move(inner)}});
  }

  std::vector<Parameter> parameters() {
    std::vector<Parameter> list;
    tokens_.expect_op("(");
    while (!tokens_.is_op(")")) {
      if (!list.empty()) tokens_.expect_op(",");
      if (tokens_.is_op(")")) break;
      Parameter parameter;
      parameter.name = tokens_.expect(TokenKind::kName, "a parameter").text;
      if (tokens_.skip_op("=")) {
        parameter.otherwise = expressions_.expression();
      } else if (!list.empty() && list.back().otherwise != nullptr) {
        tokens_.error("parameter '{}' without a default after one with", parameter.name);
      }
      list.push_back(std::move(parameter));
    }
    tokens_.expect_op(")");
    return list;
  }

  // Loops outside a macro are none of its own.
  Block separate_body(std::string_view end) {
    const int loops = std::exchange(loops_, 0);
    Block body = body_until(end);
    loops_ = loops;
    return body;
  }

  Macro macro_statement() {
    Macro macro;
    macro.name = tokens_.expect(TokenKind::kName, "the name of a macro").text;
    macro.parameters = parameters();
    macro.body = separate_body("endmacro");
    return macro;
  }

  CallBlock call_statement() {
    CallBlock node;
    node.caller.name = "caller";
    if (tokens_.is_op("(")) node.caller.parameters = parameters();
    node.call = expressions_.expression();
    if (!std::holds_alternative<Call>(node.call->node)) tokens_.error("expected a call in a call block");
    node.caller.body = separate_body("endcall");
    return node;
  }

  With with_statement() {
    With node;
    while (!tokens_.is(TokenKind::kBlockEnd)) {
      if (!node.values.empty()) tokens_.expect_op(",");
      Target to = single_target(false);
      tokens_.expect_op("=");
      node.values.emplace_back(std::move(to), expressions_.expression());
    }
    node.body = body_until("endwith");
    return node;
  }

  TokenStream tokens_;
  ExpressionParser expressions_;
  int loops_ = 0;
};

}  // namespace

Block parse_template(std::string_view source) {
  return Parser(source).run();
}

}  // namespace sluice::text::jinja

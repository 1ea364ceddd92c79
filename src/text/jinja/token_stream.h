// Reading tokens one by one, with errors that name the line.
#pragma once

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/failure.h"
#include "text/jinja/limits.h"
#include "text/jinja/token.h"

namespace sluice::text::jinja {

class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  [[nodiscard]] const Token& peek(std::size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  [[nodiscard]] int line() const { return peek().line; }
  Token next() { return at_ + 1 < tokens_.size() ? std::move(tokens_[at_++]) : tokens_.back(); }

  [[nodiscard]] bool is(TokenKind kind) const { return peek().kind == kind; }
  [[nodiscard]] bool is_name(std::string_view name, std::size_t ahead = 0) const {
    return peek(ahead).kind == TokenKind::kName && peek(ahead).text == name;
  }
  [[nodiscard]] bool is_op(std::string_view op, std::size_t ahead = 0) const {
    return peek(ahead).kind == TokenKind::kOperator && peek(ahead).text == op;
  }
  bool skip_name(std::string_view name) { return is_name(name) && (next(), true); }
  bool skip_op(std::string_view op) { return is_op(op) && (next(), true); }

  Token expect(TokenKind kind, std::string_view what) {
    if (!is(kind)) unexpected(what);
    return next();
  }
  void expect_op(std::string_view op) {
    if (!skip_op(op)) unexpected(op);
  }

  [[noreturn]] void unexpected(std::string_view wanted) const {
    error("unexpected {}, expected {}", describe(peek()), wanted);
  }

  template <class... Args>
  [[noreturn]] void error(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorCode::kCorrupt, "line {}: {}", line(), fmt::format(format, std::forward<Args>(args)...));
  }

  /// Counts one level of nesting in the source while it lives.
  class Nest {
   public:
    explicit Nest(TokenStream& stream) : stream_(stream) {
      if (++stream_.depth_ > kMaxNesting) {
        fail(ErrorCode::kLimit, "line {}: nested deeper than {} levels", stream_.line(), kMaxNesting);
      }
    }
    ~Nest() { --stream_.depth_; }
    Nest(const Nest&) = delete;
    Nest& operator=(const Nest&) = delete;

   private:
    TokenStream& stream_;
  };

 private:
  static std::string describe(const Token& token) {
    switch (token.kind) {
      case TokenKind::kEnd:
        return "end of template";
      case TokenKind::kVariableEnd:
        return "'}}'";
      case TokenKind::kBlockEnd:
        return "'%}'";
      case TokenKind::kString:
        return "string";
      default:
        return "'" + token.text.substr(0, 60) + "'";
    }
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace sluice::text::jinja

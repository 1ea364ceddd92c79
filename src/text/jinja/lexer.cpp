#include "text/jinja/lexer.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>

#include "text/jinja/failure.h"
#include "text/jinja/text_ops.h"
#include "text/utf8.h"

namespace sluice::text::jinja {
namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool starts_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

// All line ends as \n, and without the last one.
std::string with_plain_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(with_plain_newlines(source)), rest_(source_) {}

  std::vector<Token> run() {
    while (!rest_.empty()) data();
    push(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  void push(TokenKind kind, std::string text) { tokens_.push_back({kind, line_, std::move(text), 0, 0}); }

  std::string_view take(std::size_t n) {
    const std::string_view taken = rest_.substr(0, n);
    line_ += static_cast<int>(std::count(taken.begin(), taken.end(), '\n'));
    if (!taken.empty()) line_starts_ = taken.back() == '\n';
    rest_.remove_prefix(taken.size());
    return taken;
  }

  void take_spaces() { take(rest_.size() - strip_left(rest_).size()); }

  // Text up to the next tag, and that tag.
  void data() {
    std::size_t at = 0;
    for (;; ++at) {
      at = rest_.find('{', at);
      if (at == std::string_view::npos || at + 1 >= rest_.size()) {
        emit_data(rest_, '+', false);
        take(rest_.size());
        return;
      }
      const char kind = rest_[at + 1];
      if (kind == '{' || kind == '%' || kind == '#') break;
    }
    const char kind = rest_[at + 1];
    const char sign =
        at + 2 < rest_.size() && (rest_[at + 2] == '-' || rest_[at + 2] == '+') ? rest_[at + 2] : ' ';
    emit_data(rest_.substr(0, at), sign, kind != '{');
    take(at);
    const std::string_view tag = rest_;
    take(sign == ' ' ? 2 : 3);
    line_starts_ = false;
    if (kind == '#') {
      comment();
    } else if (kind == '{') {
      push(TokenKind::kVariableBegin, "");
      code("}}", TokenKind::kVariableEnd);
    } else if (const auto raw_size = raw_tag(tag, "raw", false)) {
      raw(*raw_size - (tag.size() - rest_.size()));
    } else {
      push(TokenKind::kBlockBegin, "");
      code("%}", TokenKind::kBlockEnd);
    }
  }

  // `text` before a tag with the given sign; `block`: whether white space that begins the line may go.
  void emit_data(std::string_view text, char sign, bool block) {
    if (sign == '-') {
      text = strip_right(text);
    } else if (sign != '+' && block) {
      const std::size_t newline = text.rfind('\n');
      const std::size_t begin = newline == std::string_view::npos ? 0 : newline + 1;
      if ((begin > 0 || line_starts_) && strip_left(text.substr(begin)).empty()) text = text.substr(0, begin);
    }
    if (!text.empty()) push(TokenKind::kData, std::string(text));
  }

  // Consumes the end of a block or comment and what white space goes with it.
  void end_tag(std::string_view close, char sign) {
    take(close.size());
    if (sign == '-') {
      take_spaces();
    } else if (sign != '+' && close != "}}" && rest_.starts_with('\n')) {
      take(1);
    }
  }

  void comment() {
    const std::size_t end = rest_.find("#}");
    if (end == std::string_view::npos) fail_at("missing end of comment tag");
    char sign = ' ';
    if (end > 0 && (rest_[end - 1] == '-' || rest_[end - 1] == '+')) sign = rest_[end - 1];
    take(end);
    end_tag("#}", sign);
  }

  // The length of `{%[-+] word [-+]%}` at the start of `tag`, white space after `-%}` not included.
  static std::optional<std::size_t> raw_tag(std::string_view tag, std::string_view word, bool plus_end) {
    std::string_view s = tag.substr(2);
    if (s.starts_with('-') || s.starts_with('+')) s.remove_prefix(1);
    s = strip_left(s);
    if (!s.starts_with(word)) return std::nullopt;
    s = strip_left(s.substr(word.size()));
    if (s.starts_with('-') || (plus_end && s.starts_with('+'))) s.remove_prefix(1);
    if (!s.starts_with("%}")) return std::nullopt;
    return tag.size() - s.size() + 2;
  }

  void raw(std::size_t rest_of_tag) {
    if (take(rest_of_tag).ends_with("-%}")) take_spaces();
    for (std::size_t at = rest_.find("{%"); at != std::string_view::npos; at = rest_.find("{%", at + 1)) {
      const auto size = raw_tag(rest_.substr(at), "endraw", true);
      if (!size) continue;
      const char sign = rest_[at + 2] == '-' || rest_[at + 2] == '+' ? rest_[at + 2] : ' ';
      emit_data(rest_.substr(0, at), sign, true);
      take(at);
      const char end_sign = rest_[*size - 3];
      take(*size - 2);
      end_tag("%}", end_sign == '-' || end_sign == '+' ? end_sign : ' ');
      return;
    }
    fail_at("missing end of raw directive");
  }

  // The inside of {{ }} or {% %}.
  void code(std::string_view close, TokenKind end_kind) {
    std::string open;  // brackets, innermost last; inside them the closing delimiter is not one
    for (;;) {
      take_spaces();
      if (rest_.empty()) fail_at("unexpected end of template, expected '{}'", close);
      if (open.empty()) {
        const bool block_plus = close == "%}" && rest_.starts_with('+');
        const bool signed_end = (rest_[0] == '-' || block_plus) && rest_.substr(1).starts_with(close);
        if (signed_end || rest_.starts_with(close)) {
          const char sign = signed_end ? rest_[0] : ' ';
          push(end_kind, "");
          take(signed_end ? 1 : 0);
          end_tag(close, sign);
          return;
        }
      }
      const char c = rest_[0];
      if (is_digit(c)) {
        number();
      } else if (starts_name(c)) {
        name();
      } else if (c == '\'' || c == '"') {
        string();
      } else {
        operation(open);
      }
    }
  }

  void name() {
    std::size_t n = 1;
    while (n < rest_.size() && (starts_name(rest_[n]) || is_digit(rest_[n]))) ++n;
    push(TokenKind::kName, std::string(rest_.substr(0, n)));
    take(n);
  }

  std::size_t digits(std::size_t at) const {
    while (at < rest_.size() &&
           (is_digit(rest_[at]) || (rest_[at] == '_' && at + 1 < rest_.size() && is_digit(rest_[at + 1])))) {
      ++at;
    }
    return at;
  }

  void number() {
    if (rest_.size() > 2 && rest_[0] == '0') {
      const char kind = static_cast<char>(rest_[1] | 0x20);
      const int base = kind == 'x' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 0;
      if (base != 0) return based_integer(base);
    }
    std::size_t end = digits(0);
    bool real = false;
    if (end + 1 < rest_.size() && rest_[end] == '.' && is_digit(rest_[end + 1])) {
      end = digits(end + 1);
      real = true;
    }
    if (end < rest_.size() && (rest_[end] == 'e' || rest_[end] == 'E')) {
      std::size_t exponent = end + 1;
      if (exponent < rest_.size() && (rest_[exponent] == '+' || rest_[exponent] == '-')) ++exponent;
      if (exponent < rest_.size() && is_digit(rest_[exponent])) {
        end = digits(exponent);
        real = true;
      }
    }
    std::string text(rest_.substr(0, end));
    std::erase(text, '_');
    Token token{real ? TokenKind::kFloat : TokenKind::kInteger, line_, text, 0, 0};
    const char* last = text.data() + text.size();
    const auto status = real ? std::from_chars(text.data(), last, token.number).ec
                             : std::from_chars(text.data(), last, token.integer).ec;
    if (real && status == std::errc::result_out_of_range) {
      token.number =
          text.find("e-") == std::string::npos && text.find("E-") == std::string::npos ? HUGE_VAL : 0.0;
    } else if (status != std::errc()) {
      fail_at("number {} is out of range", text.substr(0, 40));
    }
    tokens_.push_back(std::move(token));
    take(end);
  }

  void based_integer(int base) {
    std::string text;
    std::size_t end = 2;
    for (; end < rest_.size() && (starts_name(rest_[end]) || is_digit(rest_[end])); ++end) {
      if (rest_[end] != '_') text += rest_[end];
    }
    Token token{TokenKind::kInteger, line_, text, 0, 0};
    const auto [last, status] = std::from_chars(text.data(), text.data() + text.size(), token.integer, base);
    if (status != std::errc() || last != text.data() + text.size())
      fail_at("not an integer in base {}", base);
    tokens_.push_back(std::move(token));
    take(end);
  }

  void string() {
    const char quote = rest_[0];
    std::size_t end = 1;
    while (end < rest_.size() && rest_[end] != quote) end += rest_[end] == '\\' ? 2 : 1;
    if (end >= rest_.size()) fail_at("string without its closing {}", quote);
    push(TokenKind::kString, unescape(rest_.substr(1, end - 1)));
    take(end + 1);
  }

  static std::optional<char32_t> hex(std::string_view s, std::size_t at, std::size_t n) {
    if (at + n > s.size()) return std::nullopt;
    std::uint32_t value = 0;
    const auto [last, status] = std::from_chars(s.data() + at, s.data() + at + n, value, 16);
    if (status != std::errc() || last != s.data() + at + n) return std::nullopt;
    return static_cast<char32_t>(value);
  }

  std::string unescape(std::string_view s) const {
    std::string out;
    for (std::size_t i = 0; i < s.size(); ++i) {
      if (s[i] != '\\') {
        out += s[i];
        continue;
      }
      const char c = s[++i];  // a backslash is never last: string() skipped its pair
      constexpr std::string_view kFrom = "\\'\"abfnrtv";
      constexpr std::string_view kTo = "\\'\"\a\b\f\n\r\t\v";
      if (const std::size_t at = kFrom.find(c); at != std::string_view::npos) {
        out += kTo[at];
      } else if (c == '\n') {
        continue;  // a line continued
      } else if (c >= '0' && c <= '7') {
        char32_t code = 0;
        std::size_t n = 0;
        for (; n < 3 && i < s.size() && s[i] >= '0' && s[i] <= '7'; ++n) {
          code = code * 8 + static_cast<char32_t>(s[i++] - '0');
        }
        --i;
        append_utf8(out, code);
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const std::size_t n = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        auto code = hex(s, i + 1, n);
        if (!code || *code > 0x10FFFF) fail_at("bad \\{} escape in a string", c);
        i += n;
        // Two escapes for the halves of one character are joined: alone neither is text.
        if (*code >= 0xD800 && *code < 0xDC00 && s.substr(i + 1, 2) == "\\u") {
          const auto low = hex(s, i + 3, 4);
          if (low && *low >= 0xDC00 && *low < 0xE000) {
            code = 0x10000 + ((*code - 0xD800) << 10) + (*low - 0xDC00);
            i += 6;
          }
        }
        append_utf8(out, *code);
      } else {
        out += '\\';
        out += c;
      }
    }
    return out;
  }

  void operation(std::string& open) {
    constexpr std::string_view kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/",
                                               "*",  "%",  "~",  "[",  "]",  "(",  ")", "{", "}",
                                               ">",  "<",  "=",  ".",  ":",  "|",  ",", ";"};
    for (const std::string_view text : kOperators) {
      if (!rest_.starts_with(text)) continue;
      if (text == "(" || text == "[" || text == "{") {
        open += text == "(" ? ')' : text == "[" ? ']' : '}';
      } else if (text == ")" || text == "]" || text == "}") {
        if (open.empty() || open.back() != text[0]) fail_at("unexpected '{}'", text);
        open.pop_back();
      }
      push(TokenKind::kOperator, std::string(text));
      take(text.size());
      return;
    }
    fail_at("unexpected character '{}'", rest_.substr(0, utf8_size(rest_[0])));
  }

  template <class... Args>
  [[noreturn]] void fail_at(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorCode::kCorrupt, "line {}: {}", line_, fmt::format(format, std::forward<Args>(args)...));
  }

  std::string source_;
  std::string_view rest_;
  int line_ = 1;
  bool line_starts_ = true;  // whether the last thing consumed ended a line
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) {
  return Lexer(source).run();
}

}  // namespace sluice::text::jinja

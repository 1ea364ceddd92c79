#include "text/jinja/printf_format.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <vector>

#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/text_ops.h"
#include "text/utf8.h"

namespace sluice::text::jinja {
namespace {

constexpr int kMaxWidth = 10'000;

struct Spec {
  bool left = false;
  bool zero = false;
  bool plus = false;
  bool space = false;
  bool alternate = false;
  int width = 0;
  int precision = -1;
  char kind = 's';
};

class Formatter {
 public:
  Formatter(Heap& heap, std::string_view format, const Value& values)
      : heap_(heap), rest_(format), out_(heap) {
    const List* tuple = values.list();
    mapping_ = values.dict() != nullptr ? values : Value();
    strict_ = mapping_.is_none() && (tuple == nullptr || tuple->tuple);
    if (tuple != nullptr && tuple->tuple) {
      values_ = tuple->items;
    } else {
      values_.push_back(values);
    }
  }

  Value run() {
    for (;;) {
      const std::size_t percent = rest_.find('%');
      out_.add(rest_.substr(0, percent));
      if (percent == std::string_view::npos) break;
      rest_.remove_prefix(percent + 1);
      conversion();
    }
    if (used_ < values_.size() && strict_) {
      fail("not all arguments converted during string formatting");
    }
    return out_.finish();
  }

 private:
  char take() {
    if (rest_.empty()) fail("incomplete format");
    const char c = rest_[0];
    rest_.remove_prefix(1);
    return c;
  }

  int number() {
    int value = 0;
    while (!rest_.empty() && rest_[0] >= '0' && rest_[0] <= '9') {
      value = value * 10 + (take() - '0');
      if (value > kMaxWidth) fail(ErrorCode::kLimit, "a width above {} in a format", kMaxWidth);
    }
    return value;
  }

  void conversion() {
    Spec spec;
    std::optional<Value> named;
    if (rest_.starts_with('(')) {
      const std::size_t close = rest_.find(')');
      if (close == std::string_view::npos) fail("incomplete format key");
      if (mapping_.is_none()) fail("format requires a mapping");
      named = item(heap_, mapping_, heap_.string(rest_.substr(1, close - 1)));
      require_defined(*named);
      rest_.remove_prefix(close + 1);
    }
    for (; !rest_.empty(); rest_.remove_prefix(1)) {
      bool* const flag = rest_[0] == '-'   ? &spec.left
                         : rest_[0] == '0' ? &spec.zero
                         : rest_[0] == '+' ? &spec.plus
                         : rest_[0] == ' ' ? &spec.space
                         : rest_[0] == '#' ? &spec.alternate
                                           : nullptr;
      if (flag == nullptr) break;
      *flag = true;
    }
    spec.width = number();
    if (rest_.starts_with('.')) {
      take();
      spec.precision = number();
    }
    spec.kind = take();
    if (spec.kind == '%') return out_.add("%");
    if (!named) {
      if (used_ == values_.size()) fail("not enough arguments for format string");
      named = values_[used_++];
    }
    pad(spec, text_of(spec, *named));
  }

  std::string text_of(const Spec& spec, const Value& value) {
    switch (spec.kind) {
      case 's':
      case 'r': {
        TextBuilder text(heap_);
        spec.kind == 's' ? write_str(text, heap_, value) : write_repr(text, heap_, value);
        std::string& s = text.text();
        if (spec.precision >= 0) s.resize(byte_of(s, static_cast<std::size_t>(spec.precision)));
        return std::move(s);
      }
      case 'd':
      case 'i':
      case 'u':
      case 'x':
      case 'X':
      case 'o':
        return integer_text(spec, value);
      case 'f':
      case 'F':
      case 'e':
      case 'E':
      case 'g':
      case 'G':
        return float_spec_text(spec, value);
      case 'c':
        if (value.text() != nullptr && length(value) == 1) return *value.text();
        if (const auto code = as_integer(value); code && *code >= 0 && *code <= 0x10FFFF) {
          std::string s;
          append_utf8(s, static_cast<char32_t>(*code));
          return s;
        }
        fail("%c requires int or char");
      default:
        fail("unsupported format character in a template");
    }
  }

  std::string sign(const Spec& spec, bool negative) const {
    return negative ? "-" : spec.plus ? "+" : spec.space ? " " : "";
  }

  std::string integer_text(const Spec& spec, const Value& value) {
    auto integer = as_integer(value);
    if (!integer && value.get<double>() != nullptr &&
        (spec.kind == 'd' || spec.kind == 'i' || spec.kind == 'u')) {
      const double whole = std::trunc(*value.get<double>());
      if (std::abs(whole) < 9e18) integer = static_cast<std::int64_t>(whole);
    }
    if (!integer) fail("%{} format: a number is required, not {}", spec.kind, value.type_name());
    const std::uint64_t magnitude =
        *integer < 0 ? 0 - static_cast<std::uint64_t>(*integer) : static_cast<std::uint64_t>(*integer);
    std::string digits = spec.kind == 'x'   ? fmt::format("{:x}", magnitude)
                         : spec.kind == 'X' ? fmt::format("{:X}", magnitude)
                         : spec.kind == 'o' ? fmt::format("{:o}", magnitude)
                                            : fmt::format("{}", magnitude);
    const auto least = static_cast<std::size_t>(std::max(spec.precision, 0));
    if (digits.size() < least) digits.insert(0, least - digits.size(), '0');
    if (spec.alternate && spec.kind != 'd') digits.insert(0, std::string("0") + spec.kind);
    return sign(spec, *integer < 0) + digits;
  }

  std::string float_spec_text(const Spec& spec, const Value& value) {
    const auto number = as_double(value);
    if (!number) fail("must be real number, not {}", value.type_name());
    const double magnitude = std::abs(*number);
    const int precision = spec.precision < 0 ? 6 : std::min(spec.precision, 300);
    std::string digits;
    switch (spec.kind) {
      case 'e':
        digits = fmt::format("{:.{}e}", magnitude, precision);
        break;
      case 'E':
        digits = fmt::format("{:.{}E}", magnitude, precision);
        break;
      case 'g':
        digits = fmt::format("{:.{}g}", magnitude, precision);
        break;
      case 'G':
        digits = fmt::format("{:.{}G}", magnitude, precision);
        break;
      default:
        digits = fmt::format("{:.{}f}", magnitude, precision);
    }
    return sign(spec, std::signbit(*number)) + digits;
  }

  void pad(const Spec& spec, const std::string& text) {
    const std::size_t have = utf8_length(text);
    const auto want = static_cast<std::size_t>(spec.width);
    const std::size_t missing = want > have ? want - have : 0;
    if (spec.left) {
      out_.add(text);
      return out_.add(std::string(missing, ' '));
    }
    const bool numeric = spec.kind != 's' && spec.kind != 'r' && spec.kind != 'c';
    if (!spec.zero || !numeric) {
      out_.add(std::string(missing, ' '));
      return out_.add(text);
    }
    const std::size_t signs = !text.empty() && (text[0] == '-' || text[0] == '+' || text[0] == ' ') ? 1 : 0;
    out_.add(text.substr(0, signs));
    out_.add(std::string(missing, '0'));
    out_.add(text.substr(signs));
  }

  Heap& heap_;
  std::string_view rest_;
  TextBuilder out_;
  std::vector<Value> values_;
  Value mapping_;
  std::size_t used_ = 0;
  bool strict_ = true;  // anything that can be subscripted may have parts left over, as in Python
};

}  // namespace

Value printf_format(Heap& heap, std::string_view format, const Value& values) {
  return Formatter(heap, format, values).run();
}

}  // namespace sluice::text::jinja

// Filters of single values (filters.h).
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "text/jinja/evaluator.h"
#include "text/jinja/filters.h"
#include "text/jinja/methods.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/printf_format.h"
#include "text/jinja/text_ops.h"
#include "text/jinja/text_replace.h"
#include "text/utf8.h"

namespace sluice::text::jinja {
namespace {

Value trim(Evaluator& e, const Value& input, Args& args) {
  const Bound bound("trim", args, {"chars"});
  const std::string s = str_of(e.heap(), input);
  if (!bound.has_value(0)) return e.heap().string(strip_right(strip_left(s)));
  const std::string chars = bound.text(0);
  e.heap().work(s.size() * (1 + chars.size() / 64) / 64);
  return e.heap().string(strip_right(strip_left(s, chars), chars));
}

template <std::string (*Map)(std::string_view)>
Value mapped(Evaluator& e, const Value& input, Args& args) {
  const Bound bound("the filter", args, {});
  return e.heap().string(Map(str_of(e.heap(), input)));
}

Value replace(Evaluator& e, const Value& input, Args& args) {
  const Bound bound("replace", args, {"old", "new", "count"});
  const std::int64_t count = bound.has_value(2) ? bound.integer(2, -1) : -1;
  const std::string from = str_of(e.heap(), bound.required(0));
  const std::string to = str_of(e.heap(), bound.required(1));
  return e.heap().string(replaced(e.heap(), str_of(e.heap(), input), from, to, count));
}

Value otherwise(Evaluator& e, const Value& input, Args& args) {
  const Bound bound("default", args, {"default_value", "boolean"});
  const bool missing = input.is_undefined() || (bound.flag(1, false) && !input.truthy());
  return missing ? bound.value(0, e.heap().string("")) : input;
}

Value to_json(Evaluator& e, const Value& input, Args& args) {
  const Bound bound("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = bound.flag(0, false);
  style.sort_keys = bound.flag(3, false);
  if (bound.has_value(1)) {
    const Value& indent = bound.required(1);
    if (indent.text() != nullptr) {
      style.indent = *indent.text();
    } else {
      const std::int64_t width = bound.integer(1, 0);
      if (width > 1000) fail(ErrorCode::kLimit, "tojson(): an indent of {}", width);
      style.indent = std::string(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), ' ');
    }
    style.item_separator = ",";
  }
  if (bound.has_value(2)) {
    const List* pair = bound.required(2).list();
    if (pair == nullptr || pair->items.size() != 2 || pair->items[0].text() == nullptr ||
        pair->items[1].text() == nullptr) {
      fail("tojson(): separators must be two strings");
    }
    style.item_separator = *pair->items[0].text();
    style.key_separator = *pair->items[1].text();
  }
  TextBuilder text(e.heap());
  write_json(text, e.heap(), input, style);
  return text.finish();
}

Value string(Evaluator& e, const Value& input, Args& args) {
  const Bound bound("string", args, {});
  return to_str(e.heap(), input);
}

// Autoescaping is off, so text marked safe is just text.
Value safe(Evaluator& e, const Value& input, Args& args) {
  return string(e, input, args);
}

Value escape(Evaluator& e, const Value& input, Args& args) {
  const Bound bound("escape", args, {});
  TextBuilder out(e.heap());
  for (const char c : str_of(e.heap(), input)) {
    switch (c) {
      case '&':
        out.add("&amp;");
        break;
      case '<':
        out.add("&lt;");
        break;
      case '>':
        out.add("&gt;");
        break;
      case '"':
        out.add("&#34;");
        break;
      case '\'':
        out.add("&#39;");
        break;
      default:
        out.add({&c, 1});
    }
  }
  return out.finish();
}

// Python allows an underscore between two digits.
std::string without_underscores(std::string_view s) {
  std::string out;
  const auto digit = [&](std::size_t i) { return i < s.size() && s[i] >= '0' && s[i] <= '9'; };
  for (std::size_t i = 0; i < s.size(); ++i) {
    if (s[i] != '_' || i == 0 || !digit(i - 1) || !digit(i + 1)) out += s[i];
  }
  return out;
}

std::optional<double> parse_float(std::string_view text) {
  const std::string digits = without_underscores(strip_right(strip_left(text)));
  std::string_view s = digits;
  if (s.starts_with('+')) s.remove_prefix(1);
  if (s.starts_with("+") || s.starts_with("-+")) return std::nullopt;
  double value = 0;
  const auto [end, status] = std::from_chars(s.data(), s.data() + s.size(), value);
  if (status != std::errc() || end != s.data() + s.size()) return std::nullopt;
  return value;
}

std::optional<std::int64_t> parse_integer(std::string_view text, int base) {
  const std::string digits = without_underscores(strip_right(strip_left(text)));
  std::string_view s = digits;
  const bool negative = s.starts_with('-');
  if (s.starts_with('+') || negative) s.remove_prefix(1);
  if (base == 16 && (s.starts_with("0x") || s.starts_with("0X"))) s.remove_prefix(2);
  if (base == 8 && (s.starts_with("0o") || s.starts_with("0O"))) s.remove_prefix(2);
  if (base == 2 && (s.starts_with("0b") || s.starts_with("0B"))) s.remove_prefix(2);
  if (s.starts_with('-') || s.starts_with('+')) return std::nullopt;
  std::int64_t value = 0;
  const auto [end, status] = std::from_chars(s.data(), s.data() + s.size(), value, base);
  if (status != std::errc() || end != s.data() + s.size()) return std::nullopt;
  return negative ? -value : value;
}

std::optional<std::int64_t> whole(double value) {
  if (!(std::abs(value) < 9.2e18)) return std::nullopt;
  return static_cast<std::int64_t>(std::trunc(value));
}

Value to_int(Evaluator&, const Value& input, Args& args) {
  const Bound bound("int", args, {"default", "base"});
  const std::int64_t base = bound.integer(1, 10);
  if (base < 2 || base > 36) fail("int(): base must be from 2 to 36");
  require_defined(input);
  std::optional<std::int64_t> value = as_integer(input);
  if (const std::string* text = input.text()) {
    value = parse_integer(*text, static_cast<int>(base));
    if (!value) {
      if (const auto number = parse_float(*text)) value = whole(*number);
    }
  } else if (const double* number = input.get<double>()) {
    value = whole(*number);
  } else if (input.holds<BigInt>()) {
    return input;
  }
  return value ? Value(*value) : bound.value(0, std::int64_t{0});
}

Value to_float(Evaluator&, const Value& input, Args& args) {
  const Bound bound("float", args, {"default"});
  require_defined(input);
  std::optional<double> value = as_double(input);
  if (const std::string* text = input.text()) value = parse_float(*text);
  return value ? Value(*value) : bound.value(0, 0.0);
}

Value absolute(Evaluator& e, const Value& input, Args& args) {
  const Bound bound("abs", args, {});
  require_defined(input);
  if (const auto integer = as_integer(input)) {
    return *integer < 0 ? unary(e.heap(), ast::UnaryOp::kMinus, *integer) : Value(*integer);
  }
  if (const double* number = input.get<double>()) return std::abs(*number);
  if (input.holds<BigInt>()) return input;
  fail("bad operand type for abs(): '{}'", input.type_name());
}

Value round(Evaluator&, const Value& input, Args& args) {
  const Bound bound("round", args, {"precision", "method"});
  const std::int64_t precision = bound.integer(0, 0);
  const std::string method = bound.text(1, "common");
  if (method != "common" && method != "ceil" && method != "floor")
    fail("method must be common, ceil or floor");
  require_defined(input);
  const auto number = as_double(input);
  if (!number) fail("round(): a number is needed, not {}", input.type_name());
  if (precision > 300 || precision < -300) fail("round(): precision must be from -300 to 300");
  const int digits = static_cast<int>(precision);
  if (method == "common") {
    if (const auto integer = as_integer(input); integer && digits >= 0) return *integer;
    if (!std::isfinite(*number)) return *number;
    if (digits >= 0) {  // rounds the exact decimal value, ties to even, as Python does
      return std::strtod(fmt::format("{:.{}f}", *number, digits).c_str(), nullptr);
    }
    const double unit = std::pow(10.0, -digits);
    const double rounded = std::nearbyint(*number / unit) * unit;
    if (as_integer(input) && std::abs(rounded) < 9e18) return static_cast<std::int64_t>(rounded);
    return rounded;
  }
  const double unit = std::pow(10.0, digits);
  return (method == "ceil" ? std::ceil(*number * unit) : std::floor(*number * unit)) / unit;
}

Value indent(Evaluator& e, const Value& input, Args& args) {
  const Bound bound("indent", args, {"width", "first", "blank"});
  std::string margin;
  if (bound.has(0) && bound.required(0).text() != nullptr) {
    margin = bound.text(0);
  } else {
    const std::int64_t width = bound.integer(0, 4);
    if (width > 10'000) fail(ErrorCode::kLimit, "indent(): a width of {}", width);
    margin.assign(static_cast<std::size_t>(std::max<std::int64_t>(width, 0)), ' ');
  }
  const bool blank = bound.flag(2, false);
  require_defined(input);
  if (input.text() == nullptr) fail("indent() needs a string, not {}", input.type_name());
  const std::string text = *input.text() + "\n";  // so that a last line without its end counts
  TextBuilder out(e.heap());
  if (bound.flag(1, false)) out.add(margin);
  const std::vector<std::string_view> lines = split_lines(text, false);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) {
      out.add("\n");
      if (blank || !lines[i].empty()) out.add(margin);
    }
    out.add(lines[i]);
  }
  return out.finish();
}

Value format(Evaluator& e, const Value& input, Args& args) {
  if (!args.named.empty() && !args.positional.empty()) {
    fail("can't handle positional and keyword arguments at the same time");
  }
  const std::string s = str_of(e.heap(), input);
  if (args.named.empty()) return printf_format(e.heap(), s, e.heap().tuple(std::move(args.positional)));
  std::vector<std::pair<Value, Value>> entries;
  for (auto& [name, value] : args.named) entries.emplace_back(e.heap().string(name), value);
  return printf_format(e.heap(), s, e.heap().dict(std::move(entries)));
}

Value attr(Evaluator& e, const Value& input, Args& args) {
  const Bound bound("attr", args, {"name"});
  const std::string name = bound.text(0);
  // Entries of a dict are none of its attributes.
  if (input.dict() != nullptr && find_method(input, name) == nullptr) {
    return e.heap().undefined(fmt::format("'dict object' has no attribute '{}'", name));
  }
  return e.attribute(input, name);
}

}  // namespace

FilterFunction find_text_filter(std::string_view name) {
  static const std::unordered_map<std::string_view, FilterFunction> kFilters = {
      {"trim", trim},
      {"upper", mapped<to_upper>},
      {"lower", mapped<to_lower>},
      {"title", mapped<title_by_words>},
      {"capitalize", mapped<capitalize>},
      {"replace", replace},
      {"default", otherwise},
      {"d", otherwise},
      {"tojson", to_json},
      {"string", string},
      {"safe", safe},
      {"escape", escape},
      {"e", escape},
      {"forceescape", escape},
      {"int", to_int},
      {"float", to_float},
      {"abs", absolute},
      {"round", round},
      {"indent", indent},
      {"format", format},
      {"attr", attr},
  };
  const auto it = kFilters.find(name);
  return it == kFilters.end() ? nullptr : it->second;
}

FilterFunction find_filter(std::string_view name) {
  const FilterFunction found = find_text_filter(name);
  return found != nullptr ? found : find_sequence_filter(name);
}

}  // namespace sluice::text::jinja

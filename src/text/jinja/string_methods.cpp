#include "text/jinja/string_methods.h"

#include <algorithm>
#include <unordered_map>

#include "text/jinja/evaluator.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/text_ops.h"
#include "text/jinja/text_replace.h"
#include "text/utf8.h"

namespace sluice::text::jinja {
namespace {

enum class Side { kLeft, kRight, kBoth };

template <Side S>
Value strip(Evaluator& e, const Value& self, Args& args) {
  const Bound bound("strip", args, {"chars"});
  std::string_view s = *self.text();
  std::string chars;
  std::optional<std::string_view> which;
  if (bound.has_value(0)) {
    chars = bound.text(0);
    which = chars;
    e.heap().work(s.size() * (1 + chars.size() / 64) / 64);
  }
  if (S != Side::kRight) s = strip_left(s, which);
  if (S != Side::kLeft) s = strip_right(s, which);
  return e.heap().string(s);
}

template <bool FromRight>
Value split_text(Evaluator& e, const Value& self, Args& args) {
  const Bound bound(FromRight ? "rsplit" : "split", args, {"sep", "maxsplit"});
  std::string separator;
  std::optional<std::string_view> by;
  if (bound.has_value(0)) {
    separator = bound.text(0);
    if (separator.empty()) fail("empty separator");
    by = separator;
  }
  const std::int64_t most = bound.integer(1, -1);
  std::vector<Value> parts;
  for (const std::string_view part :
       FromRight ? split_from_right(*self.text(), by, most) : split(*self.text(), by, most)) {
    e.heap().work(1);
    parts.push_back(e.heap().string(part));
  }
  return e.heap().list(std::move(parts));
}

Value split_text_lines(Evaluator& e, const Value& self, Args& args) {
  const Bound bound("splitlines", args, {"keepends"});
  std::vector<Value> lines;
  for (const std::string_view line : split_lines(*self.text(), bound.flag(0, false))) {
    e.heap().work(1);
    lines.push_back(e.heap().string(line));
  }
  return e.heap().list(std::move(lines));
}

// One string or a tuple of them at one end of the text between two places.
template <bool AtStart>
Value has_affix(Evaluator& e, const Value& self, Args& args) {
  const Bound bound(AtStart ? "startswith" : "endswith", args, {"prefix", "start", "end"});
  const Value part = slice(e.heap(), self, bound.value(1, None{}), bound.value(2, None{}), None{});
  const std::string& s = *part.text();
  const auto matches = [&](const Value& affix) {
    require_defined(affix);
    if (affix.text() == nullptr) {
      fail("{} first arg must be str or a tuple of str, not {}", AtStart ? "startswith" : "endswith",
           affix.type_name());
    }
    e.heap().work(1);
    return AtStart ? s.starts_with(*affix.text()) : s.ends_with(*affix.text());
  };
  const Value& affix = bound.required(0);
  if (const List* list = affix.list(); list != nullptr && list->tuple) {
    return std::any_of(list->items.begin(), list->items.end(), matches);
  }
  return matches(affix);
}

template <std::string (*Map)(std::string_view)>
Value mapped(Evaluator& e, const Value& self, Args& args) {
  const Bound bound("the method", args, {});
  return e.heap().string(Map(*self.text()));
}

Value replace(Evaluator& e, const Value& self, Args& args) {
  const Bound bound("replace", args, {"old", "new", "count"});
  return e.heap().string(
      replaced(e.heap(), *self.text(), bound.text(0), bound.text(1), bound.integer(2, -1)));
}

Value join(Evaluator& e, const Value& self, Args& args) {
  const Bound bound("join", args, {"iterable"});
  TextBuilder out(e.heap());
  bool first = true;
  for (const Value& item : elements(e.heap(), bound.required(0))) {
    if (item.text() == nullptr) fail("sequence item: expected str instance, {} found", item.type_name());
    if (!first) out.add(*self.text());
    first = false;
    out.add(*item.text());
  }
  return out.finish();
}

// The code point where `needle` is found, or -1.
template <bool Last>
std::int64_t find_in(Evaluator& e, const Value& self, const Bound& bound) {
  const std::int64_t n = *length(self);
  const std::string needle = bound.text(0);
  std::int64_t start = bound.has_value(1) ? bound.integer(1, 0) : 0;
  if (start < 0) start = std::max<std::int64_t>(start < -n ? 0 : start + n, 0);
  if (start > n) return -1;
  const Value part = slice(e.heap(), self, start, bound.value(2, None{}), None{});
  const std::string& s = *part.text();
  e.heap().work_on_text(s.size());
  const std::size_t at = Last ? rfind_text(s, needle) : find_text(s, needle);
  if (at == std::string::npos) return -1;
  return start + static_cast<std::int64_t>(utf8_length(std::string_view(s).substr(0, at)));
}

template <bool Last, bool Required>
Value find(Evaluator& e, const Value& self, Args& args) {
  const Bound bound("find", args, {"sub", "start", "end"});
  const std::int64_t at = find_in<Last>(e, self, bound);
  if (Required && at < 0) fail("substring not found");
  return at;
}

Value count(Evaluator& e, const Value& self, Args& args) {
  const Bound bound("count", args, {"sub", "start", "end"});
  const Value part = slice(e.heap(), self, bound.value(1, None{}), bound.value(2, None{}), None{});
  e.heap().work_on_text(part.text()->size());
  return static_cast<std::int64_t>(count_of(*part.text(), bound.text(0)));
}

Value remove_prefix(Evaluator& e, const Value& self, Args& args) {
  const Bound bound("removeprefix", args, {"prefix"});
  std::string_view s = *self.text();
  const std::string prefix = bound.text(0);
  if (s.starts_with(prefix)) s.remove_prefix(prefix.size());
  return e.heap().string(s);
}

Value remove_suffix(Evaluator& e, const Value& self, Args& args) {
  const Bound bound("removesuffix", args, {"suffix"});
  std::string_view s = *self.text();
  const std::string suffix = bound.text(0);
  if (s.ends_with(suffix)) s.remove_suffix(suffix.size());
  return e.heap().string(s);
}

template <bool Last>
Value partition(Evaluator& e, const Value& self, Args& args) {
  const Bound bound("partition", args, {"sep"});
  const std::string_view s = *self.text();
  const std::string separator = bound.text(0);
  if (separator.empty()) fail("empty separator");
  const std::size_t at = Last ? rfind_text(s, separator) : find_text(s, separator);
  Heap& heap = e.heap();
  if (at == std::string_view::npos) {
    if (Last) return heap.tuple({heap.string(""), heap.string(""), self});
    return heap.tuple({self, heap.string(""), heap.string("")});
  }
  return heap.tuple(
      {heap.string(s.substr(0, at)), heap.string(separator), heap.string(s.substr(at + separator.size()))});
}

template <bool (*Check)(char32_t)>
Value all_are(Evaluator&, const Value& self, Args& args) {
  const Bound bound("the method", args, {});
  const std::string_view s = *self.text();
  for (std::size_t i = 0; i < s.size();) {
    const Utf8Step step = utf8_step(s.substr(i));
    if (!Check(step.code)) return false;
    i += step.size;
  }
  return !s.empty();
}

bool is_ascii_digit(char32_t c) {
  return c >= '0' && c <= '9';
}

// {} and {0} and {name}; attributes, conversions and format specifications are refused.
Value format(Evaluator& e, const Value& self, Args& args) {
  TextBuilder out(e.heap());
  std::string_view s = *self.text();
  std::size_t next = 0;
  while (!s.empty()) {
    const std::size_t brace = s.find_first_of("{}");
    out.add(s.substr(0, brace));
    if (brace == std::string_view::npos) break;
    s.remove_prefix(brace);
    if (s.starts_with("{{") || s.starts_with("}}")) {
      out.add(s.substr(0, 1));
      s.remove_prefix(2);
      continue;
    }
    const std::size_t close = s.find('}');
    if (close == 0 || close == std::string_view::npos) fail("single brace encountered in format string");
    const std::string field(s.substr(1, close - 1));
    s.remove_prefix(close + 1);
    const bool digits = std::all_of(field.begin(), field.end(),
                                    [](char c) { return is_ascii_digit(static_cast<unsigned char>(c)); });
    if (digits && field.size() < 6) {
      const std::size_t at = field.empty() ? next++ : static_cast<std::size_t>(std::stoi(field));
      if (at >= args.positional.size()) fail("replacement index {} out of range", at);
      write_str(out, e.heap(), args.positional[at]);
      continue;
    }
    const auto it =
        std::find_if(args.named.begin(), args.named.end(), [&](const auto& n) { return n.first == field; });
    if (it == args.named.end()) {
      fail(ErrorCode::kUnsupported, "format field '{{{}}}' is not given or not supported",
           field.substr(0, 40));
    }
    write_str(out, e.heap(), it->second);
  }
  return out.finish();
}

}  // namespace

MethodFunction find_string_method(std::string_view name) {
  static const std::unordered_map<std::string_view, MethodFunction> kMethods = {
      {"startswith", has_affix<true>},
      {"endswith", has_affix<false>},
      {"strip", strip<Side::kBoth>},
      {"lstrip", strip<Side::kLeft>},
      {"rstrip", strip<Side::kRight>},
      {"split", split_text<false>},
      {"rsplit", split_text<true>},
      {"splitlines", split_text_lines},
      {"replace", replace},
      {"upper", mapped<to_upper>},
      {"lower", mapped<to_lower>},
      {"casefold", mapped<to_lower>},
      {"title", mapped<title_by_letters>},
      {"capitalize", mapped<capitalize>},
      {"join", join},
      {"find", find<false, false>},
      {"rfind", find<true, false>},
      {"index", find<false, true>},
      {"rindex", find<true, true>},
      {"count", count},
      {"removeprefix", remove_prefix},
      {"removesuffix", remove_suffix},
      {"partition", partition<false>},
      {"rpartition", partition<true>},
      {"isspace", all_are<is_python_space>},
      {"isdigit", all_are<is_ascii_digit>},
      {"format", format},
  };
  const auto it = kMethods.find(name);
  return it == kMethods.end() ? nullptr : it->second;
}

}  // namespace sluice::text::jinja

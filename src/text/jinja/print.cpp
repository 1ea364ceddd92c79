#include "text/jinja/print.h"

#include <utf8proc.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "text/utf8.h"

namespace sluice::text::jinja {
namespace {

// Lists that were appended to may hold themselves: printing counts its own depth.
class Deeper {
 public:
  explicit Deeper(int& depth) : depth_(depth) {
    if (++depth_ > kMaxValueDepth)
      fail(ErrorCode::kLimit, "values nested deeper than {} levels", kMaxValueDepth);
  }
  ~Deeper() { --depth_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  int& depth_;
};

bool is_printable(char32_t code) {
  if (code == ' ') return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS:
      return false;
    default:
      return true;
  }
}

void write_quoted(TextBuilder& to, std::string_view s) {
  const bool has_single = s.find('\'') != std::string_view::npos;
  const char quote = has_single && s.find('"') == std::string_view::npos ? '"' : '\'';
  to.add({&quote, 1});
  for (std::size_t i = 0; i < s.size();) {
    const Utf8Step step = utf8_step(s.substr(i));
    const char32_t c = step.code;
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      to.add("\\");
      to.add(s.substr(i, 1));
    } else if (c == '\n') {
      to.add("\\n");
    } else if (c == '\r') {
      to.add("\\r");
    } else if (c == '\t') {
      to.add("\\t");
    } else if (is_printable(c)) {
      to.add(s.substr(i, step.size));
    } else if (c < 0x100) {
      to.add(fmt::format("\\x{:02x}", static_cast<std::uint32_t>(c)));
    } else if (c < 0x10000) {
      to.add(fmt::format("\\u{:04x}", static_cast<std::uint32_t>(c)));
    } else {
      to.add(fmt::format("\\U{:08x}", static_cast<std::uint32_t>(c)));
    }
    i += step.size;
  }
  to.add({&quote, 1});
}

class Repr {
 public:
  Repr(TextBuilder& to, Heap& heap) : to_(to), heap_(heap) {}

  void write(const Value& value) {
    heap_.work(1);
    if (const std::string* text = value.text()) return write_quoted(to_, *text);
    if (const List* list = value.list()) return write_list(*list);
    if (const Dict* dict = value.dict()) return write_dict(*dict);
    if (value.is_undefined()) return to_.add("Undefined");
    write_str(to_, heap_, value);
  }

 private:
  void write_list(const List& list) {
    const Deeper deeper(depth_);
    to_.add(list.tuple ? "(" : "[");
    for (std::size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) to_.add(", ");
      write(list.items[i]);
    }
    if (list.tuple && list.items.size() == 1) to_.add(",");
    to_.add(list.tuple ? ")" : "]");
  }

  void write_dict(const Dict& dict) {
    const Deeper deeper(depth_);
    to_.add("{");
    bool first = true;
    for (const auto& [key, value] : dict.entries) {
      if (!first) to_.add(", ");
      first = false;
      write(key);
      to_.add(": ");
      write(value);
    }
    to_.add("}");
  }

  TextBuilder& to_;
  Heap& heap_;
  int depth_ = 0;
};

class JsonWriter {
 public:
  JsonWriter(TextBuilder& to, Heap& heap, const JsonStyle& style) : to_(to), heap_(heap), style_(style) {}

  void write(const Value& value) {
    heap_.work(1);
    if (const std::string* text = value.text()) return write_string(*text);
    if (const List* list = value.list()) return write_list(*list);
    if (const Dict* dict = value.dict()) return write_dict(*dict);
    if (value.is_none()) return to_.add("null");
    if (const bool* flag = value.get<bool>()) return to_.add(*flag ? "true" : "false");
    if (value.holds<std::int64_t>() || value.holds<BigInt>()) return write_str(to_, heap_, value);
    if (const double* number = value.get<double>()) return to_.add(number_text(*number));
    fail("Object of type {} is not JSON serializable", value.type_name());
  }

 private:
  static std::string number_text(double number) {
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
    return float_text(number);
  }

  void write_string(std::string_view s) {
    to_.add("\"");
    std::size_t plain = 0;  // start of what can be copied as it is
    for (std::size_t i = 0; i < s.size();) {
      const Utf8Step step = utf8_step(s.substr(i));
      const char32_t c = step.code;
      const bool escape = c < 0x20 || c == '"' || c == '\\' || (style_.ensure_ascii && c >= 0x7F);
      if (escape) {
        to_.add(s.substr(plain, i - plain));
        write_escape(c);
      }
      i += step.size;
      if (escape) plain = i;
    }
    to_.add(s.substr(plain));
    to_.add("\"");
  }

  void write_escape(char32_t c) {
    constexpr std::string_view kFrom = "\"\\\n\r\t\f\b";
    constexpr std::string_view kTo = "\"\\nrtfb";
    if (const std::size_t at = c < 0x80 ? kFrom.find(static_cast<char>(c)) : std::string_view::npos;
        at != std::string_view::npos) {
      const char pair[] = {'\\', kTo[at]};
      return to_.add({pair, 2});
    }
    const auto unit = [this](std::uint32_t u) { to_.add(fmt::format("\\u{:04x}", u)); };
    if (c < 0x10000) return unit(c);
    unit(0xD800U + ((c - 0x10000U) >> 10));
    unit(0xDC00U + ((c - 0x10000U) & 0x3FFU));
  }

  void new_line() {
    if (!style_.indent) return;
    to_.add("\n");
    for (int i = 0; i < depth_; ++i) to_.add(*style_.indent);
  }

  void write_list(const List& list) {
    if (list.items.empty()) return to_.add("[]");
    {
      const Deeper deeper(depth_);
      to_.add("[");
      for (std::size_t i = 0; i < list.items.size(); ++i) {
        if (i > 0) to_.add(style_.item_separator);
        new_line();
        write(list.items[i]);
      }
    }
    new_line();
    to_.add("]");
  }

  std::string key_text(const Value& key) {
    if (const std::string* text = key.text()) return *text;
    if (key.is_none()) return "null";
    if (const bool* flag = key.get<bool>()) return *flag ? "true" : "false";
    if (const double* number = key.get<double>()) return number_text(*number);
    if (key.holds<std::int64_t>() || key.holds<BigInt>()) return str_of(heap_, key);
    fail("keys must be str, int, float, bool or None, not {}", key.type_name());
  }

  void write_dict(const Dict& dict) {
    if (dict.entries.empty()) return to_.add("{}");
    std::vector<std::pair<std::string, const Value*>> entries;
    heap_.work(dict.entries.size());
    for (const auto& [key, value] : dict.entries) entries.emplace_back(key_text(key), &value);
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
    }
    {
      const Deeper deeper(depth_);
      to_.add("{");
      for (std::size_t i = 0; i < entries.size(); ++i) {
        if (i > 0) to_.add(style_.item_separator);
        new_line();
        write_string(entries[i].first);
        to_.add(style_.key_separator);
        write(*entries[i].second);
      }
    }
    new_line();
    to_.add("}");
  }

  TextBuilder& to_;
  Heap& heap_;
  const JsonStyle& style_;
  int depth_ = 0;
};

}  // namespace

std::string float_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto printed = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  std::string_view text(buffer, static_cast<std::size_t>(printed.ptr - buffer));
  std::string out;
  if (text.starts_with('-')) {
    out = "-";
    text.remove_prefix(1);
  }
  const std::size_t e = text.find('e');
  std::string digits(1, text[0]);
  if (e > 2) digits += text.substr(2, e - 2);
  // The sign is always there; from_chars takes only a minus.
  const std::string_view power = text.substr(text[e + 1] == '+' ? e + 2 : e + 1);
  int exponent = 0;
  std::from_chars(power.data(), power.data() + power.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (digits.size() > 1) out += "." + digits.substr(1);
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<std::size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<std::size_t>(exponent) + 1;
  if (digits.size() <= whole) return out + digits + std::string(whole - digits.size(), '0') + ".0";
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

void write_str(TextBuilder& to, Heap& heap, const Value& value) {
  if (const std::string* text = value.text()) return to.add(*text);
  if (value.is_undefined()) return;
  if (value.is_none()) return to.add("None");
  if (const bool* flag = value.get<bool>()) return to.add(*flag ? "True" : "False");
  if (const auto* integer = value.get<std::int64_t>()) return to.add(std::to_string(*integer));
  if (const auto* big = value.get<BigInt>()) return to.add(std::to_string(big->value));
  if (const double* number = value.get<double>()) return to.add(float_text(*number));
  if (value.list() != nullptr || value.dict() != nullptr) return write_repr(to, heap, value);
  if (const auto* callable = value.get<std::shared_ptr<Callable>>()) {
    to.add("<function ");
    to.add((*callable)->name);
    return to.add(">");
  }
  to.add(value.holds<std::shared_ptr<Namespace>>() ? "<Namespace>" : "<LoopContext>");
}

Value to_str(Heap& heap, const Value& value) {
  if (value.text() != nullptr) return value;
  TextBuilder builder(heap);
  write_str(builder, heap, value);
  return builder.finish();
}

std::string str_of(Heap& heap, const Value& value) {
  TextBuilder builder(heap);
  write_str(builder, heap, value);
  return std::move(builder.text());
}

void write_repr(TextBuilder& to, Heap& heap, const Value& value) {
  Repr(to, heap).write(value);
}

void write_json(TextBuilder& to, Heap& heap, const Value& value, const JsonStyle& style) {
  JsonWriter(to, heap, style).write(value);
}

}  // namespace sluice::text::jinja

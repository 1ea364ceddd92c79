#include "text/jinja/text_ops.h"

#include <cstring>

#include <utf8proc.h>

#include <algorithm>

#include "text/utf8.h"

namespace sluice::text::jinja {
namespace {

bool contains_code(std::string_view chars, char32_t code) {
  for (std::size_t i = 0; i < chars.size();) {
    const Utf8Step step = utf8_step(chars.substr(i));
    if (step.code == code) return true;
    i += step.size;
  }
  return false;
}

bool strips(char32_t code, const std::optional<std::string_view>& chars) {
  return chars ? contains_code(*chars, code) : is_python_space(code);
}

char32_t upper(char32_t code) {
  return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code)));
}
char32_t lower(char32_t code) {
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code)));
}
char32_t title(char32_t code) {
  return static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(code)));
}

bool is_cased(char32_t code) {
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
      return true;
    default:
      return false;
  }
}

// Maps each code point with fn(code, starts), where `starts` tells whether a word begins there, and asks
// breaks(code) whether one can begin after it.
template <class Map, class Breaks>
std::string map_words(std::string_view s, const Map& map, const Breaks& breaks) {
  std::string out;
  out.reserve(s.size());
  bool starts = true;
  for (std::size_t i = 0; i < s.size();) {
    const Utf8Step step = utf8_step(s.substr(i));
    append_utf8(out, map(step.code, starts));
    starts = breaks(step.code);
    i += step.size;
  }
  return out;
}

char32_t title_or_lower(char32_t code, bool starts) {
  return starts ? title(code) : lower(code);
}

bool is_line_break(char32_t code) {
  return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 ||
         code == 0x2029;
}

std::vector<std::string_view> split_spaces(std::string_view s, std::int64_t most) {
  std::vector<std::string_view> parts;
  s = strip_left(s);
  while (!s.empty()) {
    if (most >= 0 && static_cast<std::int64_t>(parts.size()) == most) {
      parts.push_back(s);
      break;
    }
    std::size_t end = 0;
    while (end < s.size()) {
      const Utf8Step step = utf8_step(s.substr(end));
      if (is_python_space(step.code)) break;
      end += step.size;
    }
    parts.push_back(s.substr(0, end));
    s = strip_left(s.substr(end));
  }
  return parts;
}

}  // namespace

std::size_t find_text(std::string_view s, std::string_view needle, std::size_t from) {
  if (from > s.size()) return std::string_view::npos;
  if (needle.empty()) return from;
  // The C library's memmem is a two-way search.
  const void* found = ::memmem(s.data() + from, s.size() - from, needle.data(), needle.size());
  return found == nullptr ? std::string_view::npos
                          : static_cast<std::size_t>(static_cast<const char*>(found) - s.data());
}

std::size_t rfind_text(std::string_view s, std::string_view needle) {
  const std::string backwards(s.rbegin(), s.rend());
  const std::size_t at = find_text(backwards, std::string(needle.rbegin(), needle.rend()));
  return at == std::string_view::npos ? at : s.size() - at - needle.size();
}

bool is_python_space(char32_t code) {
  return is_white_space(code) || (code >= 0x1C && code <= 0x1F);
}

std::string_view strip_left(std::string_view s, std::optional<std::string_view> chars) {
  while (!s.empty()) {
    const Utf8Step step = utf8_step(s);
    if (!strips(step.code, chars)) break;
    s.remove_prefix(step.size);
  }
  return s;
}

std::string_view strip_right(std::string_view s, std::optional<std::string_view> chars) {
  while (!s.empty()) {
    if (!strips(utf8_before(s, s.size()), chars)) break;
    std::size_t start = s.size() - 1;
    while (start > 0 && is_utf8_tail(s[start])) --start;
    s = s.substr(0, start);
  }
  return s;
}

std::string to_upper(std::string_view s) {
  return map_words(
      s, [](char32_t code, bool) { return upper(code); }, [](char32_t) { return false; });
}

std::string to_lower(std::string_view s) {
  return map_words(
      s, [](char32_t code, bool) { return lower(code); }, [](char32_t) { return false; });
}

std::string capitalize(std::string_view s) {
  return map_words(s, title_or_lower, [](char32_t) { return false; });
}

std::string title_by_letters(std::string_view s) {
  return map_words(s, title_or_lower, [](char32_t code) { return !is_cased(code); });
}

std::string title_by_words(std::string_view s) {
  return map_words(s, title_or_lower, [](char32_t code) {
    return is_python_space(code) ||
           (code < 0x80 && std::string_view("-([{<").find(static_cast<char>(code)) != std::string_view::npos);
  });
}

std::vector<std::string_view> split(std::string_view s, std::optional<std::string_view> separator,
                                    std::int64_t most) {
  if (!separator) return split_spaces(s, most);
  std::vector<std::string_view> parts;
  for (;;) {
    const bool more = most < 0 || static_cast<std::int64_t>(parts.size()) < most;
    const std::size_t at = more ? find_text(s, *separator) : std::string_view::npos;
    parts.push_back(s.substr(0, at));
    if (at == std::string_view::npos) return parts;
    s.remove_prefix(at + separator->size());
  }
}

std::vector<std::string_view> split_from_right(std::string_view s, std::optional<std::string_view> separator,
                                               std::int64_t most) {
  if (most < 0) return split(s, separator, most);
  std::vector<std::string_view> parts;
  if (separator) {
    while (static_cast<std::int64_t>(parts.size()) < most) {
      const std::size_t at = rfind_text(s, *separator);
      if (at == std::string_view::npos) break;
      parts.push_back(s.substr(at + separator->size()));
      s = s.substr(0, at);
    }
    parts.push_back(s);
  } else {
    s = strip_right(s);
    while (!s.empty() && static_cast<std::int64_t>(parts.size()) < most) {
      std::size_t start = s.size();
      while (start > 0 && !is_python_space(utf8_before(s, start))) {
        do {
          --start;
        } while (is_utf8_tail(s[start]));
      }
      parts.push_back(s.substr(start));
      s = strip_right(s.substr(0, start));
    }
    if (!strip_left(s).empty()) parts.push_back(s);
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string_view> split_lines(std::string_view s, bool keep_ends) {
  std::vector<std::string_view> lines;
  std::size_t start = 0;
  for (std::size_t i = 0; i < s.size();) {
    const Utf8Step step = utf8_step(s.substr(i));
    if (!is_line_break(step.code)) {
      i += step.size;
      continue;
    }
    const std::size_t end = i;
    i += step.size;
    if (step.code == '\r' && i < s.size() && s[i] == '\n') ++i;
    lines.push_back(s.substr(start, (keep_ends ? i : end) - start));
    start = i;
  }
  if (start < s.size()) lines.push_back(s.substr(start));
  return lines;
}

std::size_t byte_of(std::string_view s, std::size_t index) {
  std::size_t at = 0;
  while (index > 0 && at < s.size()) {
    at += utf8_size(s[at]);
    --index;
  }
  return at;
}

std::size_t count_of(std::string_view s, std::string_view needle) {
  if (needle.empty()) return utf8_length(s) + 1;
  std::size_t n = 0;
  for (std::size_t at = find_text(s, needle); at != std::string_view::npos;
       at = find_text(s, needle, at + needle.size()))
    ++n;
  return n;
}

}  // namespace sluice::text::jinja

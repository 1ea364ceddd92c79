// Python's str operations on UTF-8: they count and compare code points.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::text::jinja {

/// The byte where `needle` first stands at or after `from`, or npos. In linear time, whatever the texts: a
/// search that is quadratic in the worst case would escape the limits on a template's work.
std::size_t find_text(std::string_view s, std::string_view needle, std::size_t from = 0);
/// The byte where it last stands, or npos.
std::size_t rfind_text(std::string_view s, std::string_view needle);

/// str.isspace of one character; also what \s matches in Python.
bool is_python_space(char32_t code);

/// Without leading / trailing characters: white space, or any of `chars`.
std::string_view strip_left(std::string_view s, std::optional<std::string_view> chars = std::nullopt);
std::string_view strip_right(std::string_view s, std::optional<std::string_view> chars = std::nullopt);

/// Simple case mapping, one code point to one (Python also maps a few to several, such as U+00DF).
std::string to_upper(std::string_view s);
std::string to_lower(std::string_view s);
std::string capitalize(std::string_view s);

/// str.title: a capital after everything that is no letter.
std::string title_by_letters(std::string_view s);

/// The title filter: a capital at the start and after white space and `-([{<`.
std::string title_by_words(std::string_view s);

/// str.split: runs of white space without a separator. `most` < 0 means no bound. The separator is not empty.
std::vector<std::string_view> split(std::string_view s, std::optional<std::string_view> separator,
                                    std::int64_t most);
std::vector<std::string_view> split_from_right(std::string_view s, std::optional<std::string_view> separator,
                                               std::int64_t most);

/// str.splitlines: also at vertical tabs, separators and the like.
std::vector<std::string_view> split_lines(std::string_view s, bool keep_ends);

/// The byte where code point `index` (0 to length) begins.
std::size_t byte_of(std::string_view s, std::size_t index);

/// Occurrences of `needle`, without overlap; between all characters for an empty one.
std::size_t count_of(std::string_view s, std::string_view needle);

}  // namespace sluice::text::jinja

// Values as text: str(), repr() and json.dumps().
#pragma once

#include <optional>
#include <string>

#include "text/jinja/heap.h"
#include "text/jinja/value.h"

namespace sluice::text::jinja {

/// repr of a float: the shortest digits that give it back, "1.0", "1e-05", "inf".
std::string float_text(double value);

/// str(value), appended.
void write_str(TextBuilder& to, Heap& heap, const Value& value);

/// str(value) as a value; strings as they are.
Value to_str(Heap& heap, const Value& value);

/// str(value) as text for a short time.
std::string str_of(Heap& heap, const Value& value);

/// repr(value), appended.
void write_repr(TextBuilder& to, Heap& heap, const Value& value);

struct JsonStyle {
  bool ensure_ascii = false;
  std::optional<std::string> indent;  // one level of it; lines are broken when present
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};

/// json.dumps(value), appended.
void write_json(TextBuilder& to, Heap& heap, const Value& value, const JsonStyle& style);

}  // namespace sluice::text::jinja

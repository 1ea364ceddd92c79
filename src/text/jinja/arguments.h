// Arguments of calls, filters and tests, and their binding to parameter names.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/heap.h"
#include "text/jinja/value.h"

namespace sluice::text::jinja {

struct Args {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

/// Arguments under the names of a built-in's parameters.
class Bound {
 public:
  /// Fails when there are more arguments than parameters, unknown names, or one given twice; `function` is
  /// for the message. An undefined value counts as given.
  Bound(std::string_view function, const Args& args, std::initializer_list<std::string_view> parameters);

  [[nodiscard]] bool has(std::size_t i) const { return values_[i].has_value(); }
  [[nodiscard]] bool has_value(std::size_t i) const { return has(i) && !values_[i]->is_none(); }

  /// The argument; fails when it is missing.
  [[nodiscard]] const Value& required(std::size_t i) const;
  [[nodiscard]] Value value(std::size_t i, Value otherwise) const { return has(i) ? *values_[i] : otherwise; }

  /// The argument as that type, the default when missing; fails on another type.
  [[nodiscard]] std::int64_t integer(std::size_t i, std::int64_t otherwise) const;
  [[nodiscard]] bool flag(std::size_t i, bool otherwise) const;
  [[nodiscard]] std::string text(std::size_t i, std::string_view otherwise) const;
  [[nodiscard]] std::string text(std::size_t i) const;  // required

 private:
  [[noreturn]] void wrong_type(std::size_t i, std::string_view wanted) const;

  std::string_view function_;
  std::vector<std::string_view> names_;
  std::vector<std::optional<Value>> values_;
};

}  // namespace sluice::text::jinja

#include "text/jinja/arguments.h"

#include <algorithm>

#include "text/jinja/operators.h"

namespace sluice::text::jinja {

Bound::Bound(std::string_view function, const Args& args, std::initializer_list<std::string_view> parameters)
    : function_(function), names_(parameters), values_(parameters.size()) {
  if (args.positional.size() > names_.size()) {
    fail("{}() takes at most {} arguments, {} given", function, names_.size(), args.positional.size());
  }
  std::copy(args.positional.begin(), args.positional.end(), values_.begin());
  for (const auto& [name, value] : args.named) {
    const auto it = std::find(names_.begin(), names_.end(), name);
    if (it == names_.end()) fail("{}() has no parameter '{}'", function, name);
    auto& slot = values_[static_cast<std::size_t>(it - names_.begin())];
    if (slot) fail("{}() got several values for parameter '{}'", function, name);
    slot = value;
  }
}

const Value& Bound::required(std::size_t i) const {
  if (!has(i)) fail("{}() is missing its argument '{}'", function_, names_[i]);
  return *values_[i];
}

void Bound::wrong_type(std::size_t i, std::string_view wanted) const {
  require_defined(*values_[i]);
  fail("{}(): '{}' must be {}, not {}", function_, names_[i], wanted, values_[i]->type_name());
}

std::int64_t Bound::integer(std::size_t i, std::int64_t otherwise) const {
  if (!has(i)) return otherwise;
  const auto integer = as_integer(*values_[i]);
  if (!integer) wrong_type(i, "an integer");
  return *integer;
}

bool Bound::flag(std::size_t i, bool otherwise) const {
  return has(i) ? values_[i]->truthy() : otherwise;
}

std::string Bound::text(std::size_t i, std::string_view otherwise) const {
  if (!has(i)) return std::string(otherwise);
  if (values_[i]->text() == nullptr) wrong_type(i, "a string");
  return *values_[i]->text();
}

std::string Bound::text(std::size_t i) const {
  static_cast<void>(required(i));
  return text(i, {});
}

}  // namespace sluice::text::jinja

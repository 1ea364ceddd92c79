#include "text/jinja/value.h"

namespace sluice::text::jinja {

const std::string* Value::text() const {
  const auto* text = get<std::shared_ptr<const Text>>();
  return text == nullptr ? nullptr : &(*text)->bytes;
}

List* Value::list() const {
  const auto* list = get<std::shared_ptr<List>>();
  return list == nullptr ? nullptr : list->get();
}

const Dict* Value::dict() const {
  const auto* dict = get<std::shared_ptr<const Dict>>();
  return dict == nullptr ? nullptr : dict->get();
}

bool Value::truthy() const {
  if (is_undefined() || is_none()) return false;
  if (const bool* flag = get<bool>()) return *flag;
  if (const auto* integer = get<std::int64_t>()) return *integer != 0;
  if (const auto* number = get<double>()) return *number != 0;
  if (const std::string* bytes = text()) return !bytes->empty();
  if (const List* items = list()) return !items->items.empty();
  if (const Dict* entries = dict()) return !entries->entries.empty();
  return true;
}

std::string_view Value::type_name() const {
  if (const List* items = list()) return items->tuple ? "tuple" : "list";
  constexpr std::string_view kNames[] = {"Undefined", "NoneType",  "bool",        "int",
                                         "int",       "float",     "str",         "list",
                                         "dict",      "Namespace", "LoopContext", "function"};
  static_assert(std::size(kNames) == std::variant_size_v<Data>);
  return kNames[data_.index()];
}

}  // namespace sluice::text::jinja

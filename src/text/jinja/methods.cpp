#include "text/jinja/methods.h"

#include <algorithm>

#include "text/jinja/evaluator.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/string_methods.h"

namespace sluice::text::jinja {
namespace {

// The number of the first item equal to `wanted`, or the size.
std::size_t place_of(Evaluator& e, const List& list, const Value& wanted) {
  std::size_t i = 0;
  while (i < list.items.size() && !equal(e.heap(), list.items[i], wanted)) ++i;
  return i;
}

Value list_index(Evaluator& e, const Value& self, Args& args) {
  const Bound bound("index", args, {"value"});
  const std::size_t at = place_of(e, *self.list(), bound.required(0));
  if (at == self.list()->items.size()) fail("the value is not in the list");
  return static_cast<std::int64_t>(at);
}

Value list_count(Evaluator& e, const Value& self, Args& args) {
  const Bound bound("count", args, {"value"});
  const Value& wanted = bound.required(0);
  return static_cast<std::int64_t>(std::count_if(self.list()->items.begin(), self.list()->items.end(),
                                                 [&](const Value& v) { return equal(e.heap(), v, wanted); }));
}

Value list_copy(Evaluator& e, const Value& self, Args& args) {
  const Bound bound("copy", args, {});
  return e.heap().list(elements(e.heap(), self));
}

Value list_append(Evaluator& e, const Value& self, Args& args) {
  const Bound bound("append", args, {"object"});
  e.heap().append(*self.get<std::shared_ptr<List>>(), bound.required(0));
  return None{};
}

Value list_pop(Evaluator&, const Value& self, Args& args) {
  const Bound bound("pop", args, {"index"});
  std::vector<Value>& items = self.list()->items;
  const auto n = static_cast<std::int64_t>(items.size());
  std::int64_t at = bound.integer(0, -1);
  if (at < 0) at += n;
  if (at < 0 || at >= n) fail("pop index out of range");
  Value popped = items[static_cast<std::size_t>(at)];
  items.erase(items.begin() + static_cast<std::ptrdiff_t>(at));
  return popped;
}

std::vector<Value> values_of(Evaluator& e, const Dict& dict) {
  e.heap().work(dict.entries.size());
  std::vector<Value> values;
  values.reserve(dict.entries.size());
  for (const auto& [key, value] : dict.entries) values.push_back(value);
  return values;
}

Value dict_items(Evaluator& e, const Value& self, Args& args) {
  const Bound bound("items", args, {});
  e.heap().work(self.dict()->entries.size());
  std::vector<Value> pairs;
  pairs.reserve(self.dict()->entries.size());
  for (const auto& [key, value] : self.dict()->entries) pairs.push_back(e.heap().tuple({key, value}));
  return e.heap().list(std::move(pairs));
}

Value dict_keys(Evaluator& e, const Value& self, Args& args) {
  const Bound bound("keys", args, {});
  return e.heap().list(elements(e.heap(), self));
}

Value dict_values(Evaluator& e, const Value& self, Args& args) {
  const Bound bound("values", args, {});
  return e.heap().list(values_of(e, *self.dict()));
}

Value dict_get(Evaluator& e, const Value& self, Args& args) {
  const Bound bound("get", args, {"key", "default"});
  const auto it = self.dict()->index.find(dict_key(e.heap(), bound.required(0)));
  if (it != self.dict()->index.end()) return self.dict()->entries[it->second].second;
  return bound.value(1, None{});
}

Value dict_copy(Evaluator&, const Value& self, Args& args) {
  const Bound bound("copy", args, {});
  return self;  // dicts never change
}

}  // namespace

MethodFunction find_method(const Value& self, std::string_view name) {
  if (self.text() != nullptr) return find_string_method(name);
  if (const List* list = self.list()) {
    if (name == "index") return list_index;
    if (name == "count") return list_count;
    if (!list->tuple && name == "copy") return list_copy;
    // The reference's sandbox refuses these two; templates written for other engines use them.
    if (!list->tuple && name == "append") return list_append;
    if (!list->tuple && name == "pop") return list_pop;
    return nullptr;
  }
  if (self.dict() != nullptr) {
    if (name == "items") return dict_items;
    if (name == "keys") return dict_keys;
    if (name == "values") return dict_values;
    if (name == "get") return dict_get;
    if (name == "copy") return dict_copy;
  }
  return nullptr;
}

}  // namespace sluice::text::jinja

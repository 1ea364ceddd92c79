// Filters that walk sequences (filters.h). Where the reference gives generators these give lists.
#include <algorithm>

#include "text/jinja/evaluator.h"
#include "text/jinja/filters.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/text_ops.h"

namespace sluice::text::jinja {
namespace {

// value.a.b.0 for the attribute "a.b.0"; entries come before attributes. `otherwise`, if not none, takes the
// place of whatever is undefined on the way.
Value dotted(Evaluator& e, const Value& value, const Value& path, const Value& otherwise = None{}) {
  const auto or_default = [&](Value found) {
    return found.is_undefined() && !otherwise.is_none() ? otherwise : found;
  };
  if (path.text() == nullptr) return or_default(e.subscript(value, path));
  Value found = value;
  for (const std::string_view part : split(*path.text(), ".", -1)) {
    const bool digits = !part.empty() && part.size() < 18 &&
                        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    const Value key =
        digits ? Value(std::int64_t{std::atoll(std::string(part).c_str())}) : e.heap().string(part);
    found = or_default(e.subscript(found, key));
  }
  return found;
}

// What sorting and uniqueness look at: an attribute if one is named, and no case unless asked.
std::vector<Value> keys_of(Evaluator& e, const std::vector<Value>& items, const Value& attribute,
                           bool case_sensitive) {
  std::vector<Value> keys;
  keys.reserve(items.size());
  for (const Value& item : items) {
    Value key = attribute.is_none() ? item : dotted(e, item, attribute);
    if (!case_sensitive && key.text() != nullptr) key = e.heap().string(to_lower(*key.text()));
    keys.push_back(std::move(key));
  }
  return keys;
}

// Places of `keys` in ascending order, equal ones as they come.
std::vector<std::size_t> order_of(Evaluator& e, const std::vector<Value>& keys, bool reverse) {
  std::vector<std::size_t> order(keys.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return reverse ? less(e.heap(), keys[b], keys[a]) : less(e.heap(), keys[a], keys[b]);
  });
  return order;
}

std::vector<Value> ordered(Evaluator& e, const std::vector<Value>& items, const std::vector<Value>& keys,
                           bool reverse) {
  std::vector<Value> out;
  out.reserve(items.size());
  for (const std::size_t i : order_of(e, keys, reverse)) out.push_back(items[i]);
  return out;
}

Value count(Evaluator&, const Value& input, Args& args) {
  const Bound bound("length", args, {});
  const auto n = length(input);
  if (!n) fail("object of type '{}' has no len()", input.type_name());
  return *n;
}

Value join(Evaluator& e, const Value& input, Args& args) {
  const Bound bound("join", args, {"d", "attribute"});
  const std::string separator = bound.has(0) ? str_of(e.heap(), bound.required(0)) : "";
  TextBuilder out(e.heap());
  bool first = true;
  for (const Value& item : elements(e.heap(), input)) {
    if (!first) out.add(separator);
    first = false;
    write_str(out, e.heap(), bound.has_value(1) ? dotted(e, item, bound.required(1)) : item);
  }
  return out.finish();
}

Value list(Evaluator& e, const Value& input, Args& args) {
  const Bound bound("list", args, {});
  return e.heap().list(elements(e.heap(), input));
}

Value first(Evaluator& e, const Value& input, Args& args) {
  const Bound bound("first", args, {});
  if (input.dict() != nullptr && !input.dict()->entries.empty()) return input.dict()->entries.front().first;
  const auto n = length(input);
  if (!n) fail("'{}' object is not iterable", input.type_name());
  if (*n == 0) return e.heap().undefined("no first item, sequence was empty");
  return element_at(e.heap(), input, 0);
}

Value last(Evaluator& e, const Value& input, Args& args) {
  const Bound bound("last", args, {});
  if (input.dict() != nullptr && !input.dict()->entries.empty()) return input.dict()->entries.back().first;
  const auto n = length(input);
  if (!n) fail("'{}' object is not reversible", input.type_name());
  if (*n == 0) return e.heap().undefined("no last item, sequence was empty");
  return element_at(e.heap(), input, static_cast<std::size_t>(*n - 1));
}

Value reverse(Evaluator& e, const Value& input, Args& args) {
  const Bound bound("reverse", args, {});
  std::vector<Value> items = elements(e.heap(), input);
  std::reverse(items.begin(), items.end());
  if (input.text() == nullptr) return e.heap().list(std::move(items));
  TextBuilder out(e.heap());
  for (const Value& c : items) out.add(*c.text());
  return out.finish();
}

Value sort(Evaluator& e, const Value& input, Args& args) {
  const Bound bound("sort", args, {"reverse", "case_sensitive", "attribute"});
  const std::vector<Value> items = elements(e.heap(), input);
  std::vector<Value> keys;
  const Value attribute = bound.value(2, None{});
  if (attribute.text() != nullptr && attribute.text()->find(',') != std::string::npos) {
    // "a,b" sorts by several attributes, one after the other.
    std::vector<std::vector<Value>> columns;
    for (const std::string_view part : split(*attribute.text(), ",", -1)) {
      columns.push_back(keys_of(e, items, e.heap().string(part), bound.flag(1, false)));
    }
    for (std::size_t i = 0; i < items.size(); ++i) {
      std::vector<Value> row;
      for (const auto& column : columns) row.push_back(column[i]);
      keys.push_back(e.heap().tuple(std::move(row)));
    }
  } else {
    keys = keys_of(e, items, attribute, bound.flag(1, false));
  }
  return e.heap().list(ordered(e, items, keys, bound.flag(0, false)));
}

Value unique(Evaluator& e, const Value& input, Args& args) {
  const Bound bound("unique", args, {"case_sensitive", "attribute"});
  const std::vector<Value> items = elements(e.heap(), input);
  const std::vector<Value> keys = keys_of(e, items, bound.value(1, None{}), bound.flag(0, false));
  std::unordered_map<std::string, bool> seen;
  std::vector<Value> out;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (seen.try_emplace(dict_key(e.heap(), keys[i])).second) out.push_back(items[i]);
  }
  return e.heap().list(std::move(out));
}

Value extreme(Evaluator& e, const Value& input, Args& args, bool largest) {
  const Bound bound(largest ? "max" : "min", args, {"case_sensitive", "attribute"});
  const std::vector<Value> items = elements(e.heap(), input);
  if (items.empty()) return e.heap().undefined("no aggregated item, sequence was empty");
  const std::vector<Value> keys = keys_of(e, items, bound.value(1, None{}), bound.flag(0, false));
  std::size_t best = 0;
  for (std::size_t i = 1; i < items.size(); ++i) {
    if (largest ? less(e.heap(), keys[best], keys[i]) : less(e.heap(), keys[i], keys[best])) best = i;
  }
  return items[best];
}

Value smallest(Evaluator& e, const Value& input, Args& args) {
  return extreme(e, input, args, false);
}
Value greatest(Evaluator& e, const Value& input, Args& args) {
  return extreme(e, input, args, true);
}

Value sum(Evaluator& e, const Value& input, Args& args) {
  const Bound bound("sum", args, {"attribute", "start"});
  Value total = bound.value(1, std::int64_t{0});
  for (const Value& item : elements(e.heap(), input)) {
    const Value part = bound.has_value(0) ? dotted(e, item, bound.required(0)) : item;
    total = binary(e.heap(), ast::BinaryOp::kAdd, total, part);
  }
  return total;
}

Value map(Evaluator& e, const Value& input, Args& args) {
  if (!input.truthy()) return e.heap().list({});  // whatever it is, as in the reference
  std::vector<Value> out;
  if (args.positional.empty()) {
    const Bound bound("map", args, {"attribute", "default"});
    const Value path = bound.required(0);
    const Value otherwise = bound.value(1, None{});
    for (const Value& item : elements(e.heap(), input)) out.push_back(dotted(e, item, path, otherwise));
    return e.heap().list(std::move(out));
  }
  if (args.positional[0].text() == nullptr) fail("map() needs the name of a filter");
  const std::string name = *args.positional[0].text();
  const Args rest{{args.positional.begin() + 1, args.positional.end()}, args.named};
  for (const Value& item : elements(e.heap(), input)) out.push_back(e.filter(name, item, rest));
  return e.heap().list(std::move(out));
}

// select, reject, selectattr and rejectattr: items by a test, of themselves or of an attribute.
Value choose(Evaluator& e, const Value& input, Args& args, bool by_attribute, bool wanted) {
  if (!input.truthy()) return e.heap().list({});
  const std::size_t before = by_attribute ? 1 : 0;
  if (args.positional.size() < before) fail("selectattr() needs the name of an attribute");
  const bool tests = args.positional.size() > before;
  std::string name;
  Args rest;
  if (tests) {
    if (args.positional[before].text() == nullptr) fail("select() needs the name of a test");
    name = *args.positional[before].text();
    rest.positional.assign(args.positional.begin() + static_cast<std::ptrdiff_t>(before) + 1,
                           args.positional.end());
    rest.named = args.named;
  }
  std::vector<Value> out;
  for (Value& item : elements(e.heap(), input)) {
    const Value looked_at = by_attribute ? dotted(e, item, args.positional[0]) : item;
    const bool passed = tests ? e.test(name, looked_at, rest) : looked_at.truthy();
    if (passed == wanted) out.push_back(std::move(item));
  }
  return e.heap().list(std::move(out));
}

template <bool ByAttribute, bool Wanted>
Value choose_as(Evaluator& e, const Value& input, Args& args) {
  return choose(e, input, args, ByAttribute, Wanted);
}

std::vector<Value> pairs_of(Evaluator& e, const Dict& dict) {
  e.heap().work(dict.entries.size());
  std::vector<Value> pairs;
  pairs.reserve(dict.entries.size());
  for (const auto& [key, value] : dict.entries) pairs.push_back(e.heap().tuple({key, value}));
  return pairs;
}

Value items(Evaluator& e, const Value& input, Args& args) {
  const Bound bound("items", args, {});
  if (input.is_undefined()) return e.heap().list({});
  if (input.dict() == nullptr) fail("can only get item pairs from a mapping");
  return e.heap().list(pairs_of(e, *input.dict()));
}

Value dict_sort(Evaluator& e, const Value& input, Args& args) {
  const Bound bound("dictsort", args, {"case_sensitive", "by", "reverse"});
  const std::string by = bound.text(1, "key");
  if (by != "key" && by != "value") fail("you can only sort by either \"key\" or \"value\"");
  require_defined(input);
  if (input.dict() == nullptr) fail("'{}' object has no attribute 'items'", input.type_name());
  const std::vector<Value> pairs = pairs_of(e, *input.dict());
  const std::vector<Value> keys =
      keys_of(e, pairs, Value(std::int64_t{by == "key" ? 0 : 1}), bound.flag(0, false));
  return e.heap().list(ordered(e, pairs, keys, bound.flag(2, false)));
}

Value batch(Evaluator& e, const Value& input, Args& args) {
  const Bound bound("batch", args, {"linecount", "fill_with"});
  static_cast<void>(bound.required(0));
  const std::int64_t size = bound.integer(0, 1);
  if (size < 1) fail("batch(): linecount must be positive");
  std::vector<Value> rows;
  std::vector<Value> row;
  for (Value& item : elements(e.heap(), input)) {
    if (static_cast<std::int64_t>(row.size()) == size) rows.push_back(e.heap().list(std::exchange(row, {})));
    row.push_back(std::move(item));
  }
  if (!row.empty()) {
    if (bound.has_value(1)) {
      const auto missing = static_cast<std::size_t>(size) - row.size();
      e.heap().need_room(std::min<std::size_t>(missing, std::size_t{1} << 40) * sizeof(Value));
      e.heap().work(missing);
      row.insert(row.end(), missing, bound.required(1));
    }
    rows.push_back(e.heap().list(std::move(row)));
  }
  return e.heap().list(std::move(rows));
}

}  // namespace

FilterFunction find_sequence_filter(std::string_view name) {
  static const std::unordered_map<std::string_view, FilterFunction> kFilters = {
      {"length", count},
      {"count", count},
      {"join", join},
      {"list", list},
      {"first", first},
      {"last", last},
      {"reverse", reverse},
      {"sort", sort},
      {"unique", unique},
      {"min", smallest},
      {"max", greatest},
      {"sum", sum},
      {"map", map},
      {"select", choose_as<false, true>},
      {"reject", choose_as<false, false>},
      {"selectattr", choose_as<true, true>},
      {"rejectattr", choose_as<true, false>},
      {"items", items},
      {"dictsort", dict_sort},
      {"batch", batch},
  };
  const auto it = kFilters.find(name);
  return it == kFilters.end() ? nullptr : it->second;
}

}  // namespace sluice::text::jinja

#include "text/jinja/functions.h"

#include <array>
#include <ctime>

#include "text/jinja/arguments.h"
#include "text/jinja/evaluator.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"

namespace sluice::text::jinja {
namespace {

Value range(Evaluator& e, Args& args) {
  const Bound bound("range", args, {"start", "stop", "step"});
  const bool only_stop = args.positional.size() == 1;
  static_cast<void>(bound.required(0));
  const std::int64_t start = only_stop ? 0 : bound.integer(0, 0);
  const std::int64_t stop = bound.integer(only_stop ? 0 : 1, 0);
  const std::int64_t step = bound.integer(2, 1);
  if (step == 0) fail("range() arg 3 must not be zero");
  std::vector<Value> items;
  for (std::int64_t at = start; step > 0 ? at < stop : at > stop;) {
    if (static_cast<std::int64_t>(items.size()) >= kMaxRange) {
      fail(ErrorCode::kLimit, "range too big: the most is {}", kMaxRange);
    }
    items.push_back(at);
    if (__builtin_add_overflow(at, step, &at)) break;
  }
  e.heap().work(items.size());
  return e.heap().list(std::move(items));
}

// The entries of dict(...): of a mapping or pairs, then the named ones.
std::vector<std::pair<Value, Value>> entries_of(Evaluator& e, Args& args) {
  std::vector<std::pair<Value, Value>> entries;
  if (args.positional.size() > 1) fail("dict expected at most 1 argument, got {}", args.positional.size());
  if (!args.positional.empty()) {
    const Value& from = args.positional[0];
    require_defined(from);
    if (const Dict* dict = from.dict()) {
      e.heap().need_room(dict->entries.size() * 2 * sizeof(Value));
      entries = dict->entries;
    } else {
      for (const Value& pair : elements(e.heap(), from)) {
        std::vector<Value> parts = elements(e.heap(), pair);
        if (parts.size() != 2) fail("dict() needs pairs, not {} values", parts.size());
        entries.emplace_back(std::move(parts[0]), std::move(parts[1]));
      }
    }
  }
  for (auto& [name, value] : args.named) entries.emplace_back(e.heap().string(name), std::move(value));
  return entries;
}

Value dict(Evaluator& e, Args& args) {
  return e.heap().dict(entries_of(e, args));
}

Value name_space(Evaluator& e, Args& args) {
  std::unordered_map<std::string, Value> values;
  for (auto& [key, value] : entries_of(e, args)) {
    if (key.text() == nullptr) fail("namespace attributes must be strings");
    values.insert_or_assign(*key.text(), std::move(value));
  }
  return e.heap().name_space(std::move(values));
}

Value raise_exception(Evaluator& e, Args& args) {
  const Bound bound("raise_exception", args, {"message"});
  throw Failure{Error{ErrorCode::kInvalidArgument, str_of(e.heap(), bound.required(0))}, true};
}

Value strftime_now(Evaluator& e, Args& args) {
  const Bound bound("strftime_now", args, {"format"});
  const std::string format = bound.text(0);
  if (format.empty()) return e.heap().string("");
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  std::array<char, 1024> text{};
  const std::size_t size = std::strftime(text.data(), text.size(), format.c_str(), &local);
  if (size == 0) fail(ErrorCode::kLimit, "strftime_now(): the date takes more than {} bytes", text.size());
  return e.heap().string(std::string_view(text.data(), size));
}

}  // namespace

void add_functions(Heap& heap, std::unordered_map<std::string, Value>& names) {
  constexpr std::pair<const char*, Value (*)(Evaluator&, Args&)> kFunctions[] = {
      {"range", range},
      {"dict", dict},
      {"namespace", name_space},
      {"raise_exception", raise_exception},
      {"strftime_now", strftime_now},
  };
  for (const auto& [name, function] : kFunctions) {
    if (!names.contains(name)) names.emplace(name, heap.callable(name, function));
  }
}

}  // namespace sluice::text::jinja

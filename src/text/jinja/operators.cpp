#include "text/jinja/operators.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "text/jinja/printf_format.h"
#include "text/jinja/text_ops.h"
#include "text/utf8.h"

namespace sluice::text::jinja {
namespace {

using ast::BinaryOp;

std::string_view symbol(BinaryOp op) {
  switch (op) {
    case BinaryOp::kAdd:
      return "+";
    case BinaryOp::kSubtract:
      return "-";
    case BinaryOp::kMultiply:
      return "*";
    case BinaryOp::kDivide:
      return "/";
    case BinaryOp::kFloorDivide:
      return "//";
    case BinaryOp::kModulo:
      return "%";
    case BinaryOp::kPower:
      return "**";
    case BinaryOp::kOr:
      return "or";
    case BinaryOp::kAnd:
      return "and";
  }
  return "?";
}

[[noreturn]] void too_large() {
  fail(ErrorCode::kLimit, "an integer does not fit into 64 bits");
}

std::int64_t power(std::int64_t base, std::int64_t exponent) {
  std::int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) too_large();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) too_large();
  }
  return result;
}

Value integers(BinaryOp op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  const bool divides = op == BinaryOp::kDivide || op == BinaryOp::kFloorDivide || op == BinaryOp::kModulo;
  if (divides && b == 0) fail("division by zero");
  switch (op) {
    case BinaryOp::kAdd:
      if (__builtin_add_overflow(a, b, &result)) too_large();
      return result;
    case BinaryOp::kSubtract:
      if (__builtin_sub_overflow(a, b, &result)) too_large();
      return result;
    case BinaryOp::kMultiply:
      if (__builtin_mul_overflow(a, b, &result)) too_large();
      return result;
    case BinaryOp::kDivide:
      return static_cast<double>(a) / static_cast<double>(b);
    case BinaryOp::kFloorDivide:
      if (b == -1) return integers(BinaryOp::kSubtract, 0, a);
      result = a / b;
      if (a % b != 0 && (a < 0) != (b < 0)) --result;
      return result;
    case BinaryOp::kModulo:
      if (b == -1) return std::int64_t{0};
      result = a % b;
      if (result != 0 && (result < 0) != (b < 0)) result += b;
      return result;
    default:
      if (b < 0) {
        if (a == 0) fail("0.0 cannot be raised to a negative power");
        return std::pow(static_cast<double>(a), static_cast<double>(b));
      }
      return power(a, b);
  }
}

Value floats(BinaryOp op, double a, double b) {
  const bool divides = op == BinaryOp::kDivide || op == BinaryOp::kFloorDivide || op == BinaryOp::kModulo;
  if (divides && b == 0) fail("float division by zero");
  switch (op) {
    case BinaryOp::kAdd:
      return a + b;
    case BinaryOp::kSubtract:
      return a - b;
    case BinaryOp::kMultiply:
      return a * b;
    case BinaryOp::kDivide:
      return a / b;
    case BinaryOp::kFloorDivide:
    case BinaryOp::kModulo: {
      double rest = std::fmod(a, b);
      if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
      if (op == BinaryOp::kModulo) return rest;
      return std::floor((a - rest) / b + 0.5);
    }
    default: {
      if (a == 0 && b < 0) fail("0.0 cannot be raised to a negative power");
      const double result = std::pow(a, b);
      if (std::isnan(result) && !std::isnan(a) && !std::isnan(b)) fail("a power that is no real number");
      if (std::isinf(result) && !std::isinf(a) && !std::isinf(b)) fail("a power too large for a float");
      return result;
    }
  }
}

Value repeat(Heap& heap, const Value& sequence, std::int64_t times) {
  const auto n = static_cast<std::size_t>(std::max<std::int64_t>(times, 0));
  const auto room = [&](std::size_t unit) {
    if (unit > 0 && n > heap.limits().memory_bytes / unit)
      heap.need_room(std::numeric_limits<std::size_t>::max());
    heap.need_room(unit * n);
  };
  if (const std::string* text = sequence.text()) {
    room(text->size());
    if (text->empty()) return sequence;
    std::string out;
    out.reserve(text->size() * n);
    for (std::size_t i = 0; i < n; ++i) out += *text;
    return heap.string(std::move(out));
  }
  const List& list = *sequence.list();
  std::vector<Value> items;
  room(list.items.size() * sizeof(Value));
  if (!list.items.empty()) {
    heap.work(n * list.items.size() / 8);
    items.reserve(list.items.size() * n);
    for (std::size_t i = 0; i < n; ++i) items.insert(items.end(), list.items.begin(), list.items.end());
  }
  return list.tuple ? heap.tuple(std::move(items)) : heap.list(std::move(items));
}

Value concatenated(Heap& heap, const List& a, const List& b) {
  heap.need_room((a.items.size() + b.items.size()) * sizeof(Value));
  std::vector<Value> items;
  items.reserve(a.items.size() + b.items.size());
  items.insert(items.end(), a.items.begin(), a.items.end());
  items.insert(items.end(), b.items.begin(), b.items.end());
  return a.tuple ? heap.tuple(std::move(items)) : heap.list(std::move(items));
}

std::size_t text_length(const Value& value) {
  return (*value.get<std::shared_ptr<const Text>>())->length;
}

}  // namespace

void require_defined(const Value& value) {
  if (const Undefined* undefined = value.get<Undefined>()) fail("{}", undefined->why->bytes);
}

std::optional<std::int64_t> as_integer(const Value& value) {
  if (const bool* flag = value.get<bool>()) return *flag ? 1 : 0;
  if (const auto* integer = value.get<std::int64_t>()) return *integer;
  return std::nullopt;
}

std::optional<double> as_double(const Value& value) {
  if (const double* number = value.get<double>()) return *number;
  if (const auto* big = value.get<BigInt>()) return static_cast<double>(big->value);
  if (const auto integer = as_integer(value)) return static_cast<double>(*integer);
  return std::nullopt;
}

Value binary(Heap& heap, BinaryOp op, const Value& left, const Value& right) {
  if (op == BinaryOp::kModulo && left.text() != nullptr) return printf_format(heap, *left.text(), right);
  require_defined(left);
  require_defined(right);
  const auto a = as_integer(left);
  const auto b = as_integer(right);
  if (a && b) return integers(op, *a, *b);
  const auto x = as_double(left);
  const auto y = as_double(right);
  if (x && y) return floats(op, *x, *y);
  if (op == BinaryOp::kAdd) {
    if (left.text() != nullptr && right.text() != nullptr) {
      heap.need_room(left.text()->size() + right.text()->size());
      return heap.string(*left.text() + *right.text());
    }
    const List* one = left.list();
    const List* two = right.list();
    if (one != nullptr && two != nullptr && one->tuple == two->tuple) return concatenated(heap, *one, *two);
  }
  if (op == BinaryOp::kMultiply) {
    if (b && (left.text() != nullptr || left.list() != nullptr)) return repeat(heap, left, *b);
    if (a && (right.text() != nullptr || right.list() != nullptr)) return repeat(heap, right, *a);
  }
  fail("unsupported operand type(s) for {}: '{}' and '{}'", symbol(op), left.type_name(), right.type_name());
}

Value unary(Heap& heap, ast::UnaryOp op, const Value& operand) {
  if (op == ast::UnaryOp::kNot) return !operand.truthy();
  require_defined(operand);
  const bool minus = op == ast::UnaryOp::kMinus;
  if (const auto integer = as_integer(operand)) {
    return minus ? binary(heap, BinaryOp::kSubtract, std::int64_t{0}, *integer) : Value(*integer);
  }
  if (const auto number = as_double(operand)) return minus ? -*number : *number;
  fail("bad operand type for unary {}: '{}'", minus ? '-' : '+', operand.type_name());
}

std::optional<std::int64_t> length(const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.text() != nullptr) return static_cast<std::int64_t>(text_length(value));
  if (const List* list = value.list()) return static_cast<std::int64_t>(list->items.size());
  if (const Dict* dict = value.dict()) return static_cast<std::int64_t>(dict->entries.size());
  return std::nullopt;
}

std::vector<Value> elements(Heap& heap, const Value& value) {
  std::vector<Value> out;
  const auto n = length(value);
  if (!n) fail("'{}' object is not iterable", value.type_name());
  heap.work(static_cast<std::uint64_t>(*n));
  heap.need_room(static_cast<std::size_t>(*n) * sizeof(Value));
  out.reserve(static_cast<std::size_t>(*n));
  if (const std::string* text = value.text()) {
    for (std::size_t i = 0; i < text->size();) {
      const std::size_t size = utf8_size((*text)[i]);
      out.push_back(heap.string(text->substr(i, size)));
      i += size;
    }
  } else if (const List* list = value.list()) {
    out = list->items;
  } else if (const Dict* dict = value.dict()) {
    for (const auto& [key, ignored] : dict->entries) out.push_back(key);
  }
  return out;
}

Value element_at(Heap& heap, const Value& sequence, std::size_t index) {
  if (const List* list = sequence.list()) return list->items[index];
  const std::string& text = *sequence.text();
  std::size_t at = index;
  if (text_length(sequence) != text.size()) {
    heap.work_on_text(text.size());
    at = byte_of(text, index);
  }
  return heap.string(text.substr(at, utf8_size(text[at])));
}

Value item(Heap& heap, const Value& value, const Value& key) {
  require_defined(value);
  if (const Dict* dict = value.dict()) {
    const bool hashable = key.list() == nullptr || key.list()->tuple;
    if (hashable && key.dict() == nullptr) {
      const auto it = dict->index.find(dict_key(heap, key));
      if (it != dict->index.end()) return dict->entries[it->second].second;
    }
  } else if (value.list() != nullptr || value.text() != nullptr) {
    if (const auto index = as_integer(key)) {
      const std::int64_t n = *length(value);
      const std::int64_t at = *index < 0 ? *index + n : *index;
      if (at >= 0 && at < n) return element_at(heap, value, static_cast<std::size_t>(at));
    }
  }
  const std::string object = value.is_none() ? "None" : std::string(value.type_name()) + " object";
  if (const std::string* name = key.text()) {
    return heap.undefined(fmt::format("'{}' has no attribute '{}'", object, name->substr(0, 100)));
  }
  const auto index = as_integer(key);
  return heap.undefined(index ? fmt::format("{} has no element {}", object, *index)
                              : fmt::format("{} has no such element", object));
}

Value slice(Heap& heap, const Value& value, const Value& start, const Value& stop, const Value& step) {
  require_defined(value);
  if (value.list() == nullptr && value.text() == nullptr) {
    fail("'{}' object cannot be sliced", value.type_name());
  }
  const std::int64_t n = *length(value);
  const auto part = [](const Value& v, std::int64_t otherwise) {
    if (v.is_none()) return otherwise;
    const auto integer = as_integer(v);
    if (!integer) fail("slice indices must be integers or None");
    return *integer;
  };
  const std::int64_t by = part(step, 1);
  if (by == 0) fail("slice step cannot be zero");
  // Bounds as slice.indices() of Python gives them.
  const std::int64_t low = by > 0 ? 0 : -1;
  const std::int64_t high = by > 0 ? n : n - 1;
  const auto bound = [&](const Value& v, std::int64_t otherwise) {
    std::int64_t at = part(v, otherwise);
    if (v.is_none()) return at;
    if (at < 0) at = at < -n ? low : at + n;
    return std::clamp(at, low, high);
  };
  const std::int64_t from = bound(start, by > 0 ? low : high);
  const std::int64_t to = bound(stop, by > 0 ? high : low);
  if (value.text() != nullptr && by == 1) {
    const std::string& text = *value.text();
    if (from >= to) return heap.string("");
    heap.work_on_text(text.size());
    const std::size_t first = byte_of(text, static_cast<std::size_t>(from));
    const std::size_t size =
        byte_of(std::string_view(text).substr(first), static_cast<std::size_t>(to - from));
    return heap.string(text.substr(first, size));
  }
  const std::vector<Value> all = elements(heap, value);
  std::vector<Value> chosen;
  for (std::int64_t at = from; by > 0 ? at < to : at > to;) {
    chosen.push_back(all[static_cast<std::size_t>(at)]);
    if (__builtin_add_overflow(at, by, &at)) break;
  }
  if (value.list() != nullptr) {
    return value.list()->tuple ? heap.tuple(std::move(chosen)) : heap.list(std::move(chosen));
  }
  TextBuilder builder(heap);
  for (const Value& c : chosen) builder.add(*c.text());
  return builder.finish();
}

}  // namespace sluice::text::jinja

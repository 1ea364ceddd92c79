// Python's operators on values.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/heap.h"
#include "text/jinja/value.h"

namespace sluice::text::jinja {

/// Fails with the reason why `value` is undefined, if it is.
void require_defined(const Value& value);

/// a + b and the like; not for `and` and `or`, which need not evaluate both.
Value binary(Heap& heap, ast::BinaryOp op, const Value& left, const Value& right);
Value unary(Heap& heap, ast::UnaryOp op, const Value& operand);
bool compare(Heap& heap, ast::CompareOp op, const Value& left, const Value& right);

bool equal(Heap& heap, const Value& a, const Value& b);

/// a < b; fails for kinds that have no order.
bool less(Heap& heap, const Value& a, const Value& b);

/// The elements a loop would visit: items, keys of a dict, characters. None of an undefined value.
std::vector<Value> elements(Heap& heap, const Value& value);

/// len(value), or nothing for kinds without one.
std::optional<std::int64_t> length(const Value& value);

/// value[key]; undefined when it is not there.
Value item(Heap& heap, const Value& value, const Value& key);

/// value[start:stop:step]; parts that are none count as left out.
Value slice(Heap& heap, const Value& value, const Value& start, const Value& stop, const Value& step);

/// Integers and bools.
std::optional<std::int64_t> as_integer(const Value& value);

/// Any number as a float.
std::optional<double> as_double(const Value& value);

/// The `index`-th character or element, index in range.
Value element_at(Heap& heap, const Value& sequence, std::size_t index);

}  // namespace sluice::text::jinja

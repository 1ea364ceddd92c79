#include "text/jinja/tests.h"

#include <unordered_map>

#include "text/jinja/evaluator.h"
#include "text/jinja/filters.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/text_ops.h"

namespace sluice::text::jinja {
namespace {

bool is_integer(const Value& v) {
  return v.holds<std::int64_t>() || v.holds<BigInt>();
}

template <bool (*Check)(const Value&)>
bool kind(Evaluator&, const Value& input, Args& args) {
  const Bound bound("the test", args, {});
  return Check(input);
}

bool defined(const Value& v) {
  return !v.is_undefined();
}
bool undefined(const Value& v) {
  return v.is_undefined();
}
bool none(const Value& v) {
  return v.is_none();
}
bool string(const Value& v) {
  return v.text() != nullptr;
}
bool mapping(const Value& v) {
  return v.dict() != nullptr;
}
bool boolean(const Value& v) {
  return v.holds<bool>();
}
bool is_true(const Value& v) {
  return v.holds<bool>() && *v.get<bool>();
}
bool is_false(const Value& v) {
  return v.holds<bool>() && !*v.get<bool>();
}
bool floating(const Value& v) {
  return v.holds<double>();
}
// Python's bool is a number too.
bool number(const Value& v) {
  return as_double(v).has_value();
}
// An undefined value has a length, zero, and can be looped over.
bool sequence(const Value& v) {
  return length(v).has_value();
}
bool iterable(const Value& v) {
  return length(v).has_value() || v.holds<std::shared_ptr<LoopState>>();
}
// In the reference an undefined value has a __call__, which fails.
bool callable(const Value& v) {
  return v.holds<std::shared_ptr<Callable>>() || v.is_undefined();
}
bool escaped(const Value&) {
  return false;
}

template <ast::CompareOp Op>
bool compared(Evaluator& e, const Value& input, Args& args) {
  const Bound bound("the test", args, {"other"});
  return compare(e.heap(), Op, input, bound.required(0));
}

bool divisible_by(Evaluator& e, const Value& input, Args& args) {
  const Bound bound("divisibleby", args, {"num"});
  const Value rest = binary(e.heap(), ast::BinaryOp::kModulo, input, bound.required(0));
  return equal(e.heap(), rest, std::int64_t{0});
}

template <int Rest>
bool parity(Evaluator& e, const Value& input, Args& args) {
  const Bound bound("the test", args, {});
  return equal(e.heap(), binary(e.heap(), ast::BinaryOp::kModulo, input, std::int64_t{2}),
               std::int64_t{Rest});
}

bool same_as(Evaluator& e, const Value& input, Args& args) {
  const Bound bound("sameas", args, {"other"});
  const Value& other = bound.required(0);
  if (input.data().index() != other.data().index()) return false;
  if (input.list() != nullptr) return input.list() == other.list();
  if (input.dict() != nullptr) return input.dict() == other.dict();
  return equal(e.heap(), input, other);
}

bool has_case(std::string_view s, bool upper) {
  const std::string mapped = upper ? to_upper(s) : to_lower(s);
  return mapped == s && (upper ? to_lower(s) : to_upper(s)) != s;
}

template <bool Upper>
bool in_case(Evaluator& e, const Value& input, Args& args) {
  const Bound bound("the test", args, {});
  return has_case(str_of(e.heap(), input), Upper);
}

bool is_filter(Evaluator&, const Value& input, Args& args) {
  const Bound bound("filter", args, {});
  return input.text() != nullptr && find_filter(*input.text()) != nullptr;
}

bool is_test(Evaluator&, const Value& input, Args& args) {
  const Bound bound("test", args, {});
  return input.text() != nullptr && find_test(*input.text()) != nullptr;
}

}  // namespace

TestFunction find_test(std::string_view name) {
  using ast::CompareOp;
  static const std::unordered_map<std::string_view, TestFunction> kTests = {
      {"defined", kind<defined>},
      {"undefined", kind<undefined>},
      {"none", kind<none>},
      {"string", kind<string>},
      {"mapping", kind<mapping>},
      {"sequence", kind<sequence>},
      {"iterable", kind<iterable>},
      {"number", kind<number>},
      {"integer", kind<is_integer>},
      {"float", kind<floating>},
      {"boolean", kind<boolean>},
      {"true", kind<is_true>},
      {"false", kind<is_false>},
      {"callable", kind<callable>},
      {"escaped", kind<escaped>},
      {"odd", parity<1>},
      {"even", parity<0>},
      {"divisibleby", divisible_by},
      {"sameas", same_as},
      {"upper", in_case<true>},
      {"lower", in_case<false>},
      {"filter", is_filter},
      {"test", is_test},
      {"in", compared<CompareOp::kIn>},
      {"eq", compared<CompareOp::kEqual>},
      {"equalto", compared<CompareOp::kEqual>},
      {"==", compared<CompareOp::kEqual>},
      {"ne", compared<CompareOp::kNotEqual>},
      {"!=", compared<CompareOp::kNotEqual>},
      {"lt", compared<CompareOp::kLess>},
      {"lessthan", compared<CompareOp::kLess>},
      {"<", compared<CompareOp::kLess>},
      {"le", compared<CompareOp::kLessEqual>},
      {"<=", compared<CompareOp::kLessEqual>},
      {"gt", compared<CompareOp::kGreater>},
      {"greaterthan", compared<CompareOp::kGreater>},
      {">", compared<CompareOp::kGreater>},
      {"ge", compared<CompareOp::kGreaterEqual>},
      {">=", compared<CompareOp::kGreaterEqual>},
  };
  const auto it = kTests.find(name);
  return it == kTests.end() ? nullptr : it->second;
}

}  // namespace sluice::text::jinja

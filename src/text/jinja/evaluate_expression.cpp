// Expressions, attributes and calls (evaluator.h).
#include "text/jinja/evaluator.h"
#include "text/jinja/filters.h"
#include "text/jinja/methods.h"
#include "text/jinja/nest.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/tests.h"

namespace sluice::text::jinja {

Value Evaluator::eval(const ast::Expr& expr) {
  const Nest nest(*this);
  heap_.work(1);
  line_ = expr.line;
  Value value = std::visit([this](const auto& node) { return eval_node(node); }, expr.node);
  line_ = expr.line;  // of the operator that uses the value next, which is on this line or one close by
  return value;
}

const Value* Evaluator::lookup(const std::string& name) const {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->parent.get()) {
    const auto it = scope->names.find(name);
    if (it != scope->names.end()) return &it->second;
  }
  return nullptr;
}

Value Evaluator::eval_node(const ast::Name& node) {
  if (const Value* value = lookup(node.name)) return *value;
  return heap_.undefined(fmt::format("'{}' is undefined", node.name));
}

Value Evaluator::eval_node(const ast::ListDisplay& node) {
  std::vector<Value> items;
  items.reserve(node.items.size());
  for (const ast::ExprPtr& item : node.items) items.push_back(eval(*item));
  return node.tuple ? heap_.tuple(std::move(items)) : heap_.list(std::move(items));
}

Value Evaluator::eval_node(const ast::DictDisplay& node) {
  std::vector<std::pair<Value, Value>> entries;
  entries.reserve(node.items.size());
  for (const auto& [key, value] : node.items) {
    Value k = eval(*key);
    entries.emplace_back(std::move(k), eval(*value));
  }
  return heap_.dict(std::move(entries));
}

Value Evaluator::eval_node(const ast::Unary& node) {
  return unary(heap_, node.op, eval(*node.operand));
}

Value Evaluator::eval_node(const ast::Binary& node) {
  Value left = eval(*node.left);
  if (node.op == ast::BinaryOp::kAnd) return left.truthy() ? eval(*node.right) : left;
  if (node.op == ast::BinaryOp::kOr) return left.truthy() ? left : eval(*node.right);
  const Value right = eval(*node.right);
  return binary(heap_, node.op, left, right);
}

Value Evaluator::eval_node(const ast::Concat& node) {
  TextBuilder text(heap_);
  for (const ast::ExprPtr& part : node.parts) write_str(text, heap_, eval(*part));
  return text.finish();
}

Value Evaluator::eval_node(const ast::Compare& node) {
  Value left = eval(*node.first);
  for (const auto& [op, expr] : node.rest) {
    Value right = eval(*expr);
    if (!compare(heap_, op, left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Evaluator::eval_node(const ast::Conditional& node) {
  if (eval(*node.condition).truthy()) return eval(*node.then);
  if (node.otherwise != nullptr) return eval(*node.otherwise);
  return heap_.undefined("the inline if-expression evaluated to false and no else section was defined");
}

Value Evaluator::eval_node(const ast::Attribute& node) {
  return attribute(eval(*node.object), node.name);
}

Value Evaluator::eval_node(const ast::Index& node) {
  const Value object = eval(*node.object);
  return subscript(object, eval(*node.key));
}

Value Evaluator::eval_node(const ast::Slice& node) {
  const Value object = eval(*node.object);
  const auto part = [this](const ast::ExprPtr& expr) { return expr == nullptr ? Value() : eval(*expr); };
  const Value start = part(node.start);
  const Value stop = part(node.stop);
  return slice(heap_, object, start, stop, part(node.step));
}

Value Evaluator::eval_node(const ast::Call& node) {
  const Value callee = eval(*node.callee);
  return call(callee, eval_arguments(node.arguments));
}

Value Evaluator::eval_node(const ast::Filter& node) {
  const Value input = eval(*node.input);
  return filter(node.name, input, eval_arguments(node.arguments));
}

Value Evaluator::eval_node(const ast::Test& node) {
  const Value input = eval(*node.input);
  return test(node.name, input, eval_arguments(node.arguments)) != node.negated;
}

Args Evaluator::eval_arguments(const ast::Arguments& arguments) {
  Args args;
  for (const ast::ExprPtr& expr : arguments.positional) args.positional.push_back(eval(*expr));
  for (const auto& [name, expr] : arguments.named) args.named.emplace_back(name, eval(*expr));
  if (arguments.more_positional != nullptr) {
    const Value more = eval(*arguments.more_positional);
    require_defined(more);
    for (Value& value : elements(heap_, more)) args.positional.push_back(std::move(value));
  }
  if (arguments.more_named != nullptr) {
    const Value more = eval(*arguments.more_named);
    require_defined(more);
    if (more.dict() == nullptr) fail("argument after ** must be a mapping, not {}", more.type_name());
    heap_.work(more.dict()->entries.size());
    for (const auto& [key, value] : more.dict()->entries) {
      if (key.text() == nullptr) fail("keywords must be strings");
      args.named.emplace_back(*key.text(), value);
    }
  }
  return args;
}

Value Evaluator::call(const Value& callee, Args args) {
  require_defined(callee);
  const auto* callable = callee.get<std::shared_ptr<Callable>>();
  if (callable == nullptr) fail("'{}' object is not callable", callee.type_name());
  const Nest nest(*this);
  const std::shared_ptr<Callable> held = *callable;  // the call may drop the name it came by
  return held->call(*this, args);
}

Value Evaluator::filter(const std::string& name, const Value& input, Args args) {
  const Nest nest(*this);
  heap_.work(1);
  const FilterFunction function = find_filter(name);
  if (function == nullptr) fail(ErrorCode::kUnsupported, "no filter named '{}'", name);
  return function(*this, input, args);
}

bool Evaluator::test(const std::string& name, const Value& input, Args args) {
  const Nest nest(*this);
  heap_.work(1);
  const TestFunction function = find_test(name);
  if (function == nullptr) fail(ErrorCode::kUnsupported, "no test named '{}'", name);
  return function(*this, input, args);
}

Value Evaluator::attribute(const Value& object, const std::string& name) {
  require_defined(object);
  if (const auto* space = object.get<std::shared_ptr<Namespace>>()) {
    const auto it = (*space)->values.find(name);
    if (it != (*space)->values.end()) return it->second;
  } else if (const auto* loop = object.get<std::shared_ptr<LoopState>>()) {
    return loop_attribute(*loop, name);
  } else if (const MethodFunction method = find_method(object, name)) {
    return heap_.callable(
        name, [method, object](Evaluator& evaluator, Args& args) { return method(evaluator, object, args); },
        depth_of(object));
  } else if (const Dict* dict = object.dict()) {
    if (const Value* value = dict->find(name)) return *value;
  }
  const std::string type = object.is_none() ? "None" : std::string(object.type_name()) + " object";
  return heap_.undefined(fmt::format("'{}' has no attribute '{}'", type, name));
}

Value Evaluator::subscript(const Value& object, const Value& key) {
  Value found = item(heap_, object, key);
  if (!found.is_undefined() || key.text() == nullptr) return found;
  return attribute(object, *key.text());
}

Value Evaluator::loop_attribute(const std::shared_ptr<LoopState>& loop, const std::string& name) {
  const auto n = static_cast<std::int64_t>(loop->items.size());
  const auto at = static_cast<std::int64_t>(std::min(loop->index, loop->items.size() - 1));
  const auto neighbour = [&](std::int64_t i, const char* why) {
    return i >= 0 && i < n ? loop->items[static_cast<std::size_t>(i)] : heap_.undefined(why);
  };
  if (name == "index") return at + 1;
  if (name == "index0") return at;
  if (name == "revindex") return n - at;
  if (name == "revindex0") return n - at - 1;
  if (name == "first") return at == 0;
  if (name == "last") return at == n - 1;
  if (name == "length") return n;
  if (name == "depth") return std::int64_t{1};  // counts recursion, which loops here do not have
  if (name == "depth0") return std::int64_t{0};
  if (name == "previtem") return neighbour(at - 1, "there is no previous item");
  if (name == "nextitem") return neighbour(at + 1, "there is no next item");
  if (name == "cycle") {
    return heap_.callable(name, [at](Evaluator&, Args& args) {
      if (args.positional.empty()) fail("no items for cycling given");
      return args.positional[static_cast<std::size_t>(at) % args.positional.size()];
    });
  }
  if (name == "changed") {
    return heap_.callable(
        name,
        [loop](Evaluator& evaluator, Args& args) -> Value {
          Value now = evaluator.heap().tuple(args.positional);
          if (loop->last_seen && equal(evaluator.heap(), *loop->last_seen, now)) return false;
          if (!loop->kept) {  // what it remembers may be the loop itself
            loop->kept = true;
            evaluator.heap().at_end([loop] { loop->last_seen.reset(); });
          }
          loop->last_seen = std::move(now);
          return true;
        },
        loop->nesting);
  }
  return heap_.undefined(fmt::format("'LoopContext object' has no attribute '{}'", name));
}

}  // namespace sluice::text::jinja

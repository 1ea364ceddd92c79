// Statements, scopes and macros (evaluator.h).
#include "text/jinja/evaluator.h"
#include "text/jinja/functions.h"
#include "text/jinja/nest.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"

namespace sluice::text::jinja {

class Evaluator::Inner {
 public:
  Inner(Evaluator& evaluator, std::shared_ptr<Scope> parent)
      : evaluator_(evaluator), outer_(evaluator.scope_) {
    evaluator_.scope_ = std::make_shared<Scope>(Scope{std::move(parent), {}, Charge(evaluator.heap_, 0)});
  }
  ~Inner() { evaluator_.scope_ = std::move(outer_); }
  Inner(const Inner&) = delete;
  Inner& operator=(const Inner&) = delete;

 private:
  Evaluator& evaluator_;
  std::shared_ptr<Scope> outer_;
};

Evaluator::Evaluator(Heap& heap, std::unordered_map<std::string, Value> variables)
    : heap_(heap), globals_(std::make_shared<Scope>()) {
  globals_->charge = Charge(heap, 0);
  globals_->names = std::move(variables);
  add_functions(heap_, globals_->names);
  scope_ = globals_;
}

Evaluator::~Evaluator() {
  // Macros in the globals refer back to them.
  globals_->names.clear();
}

std::string Evaluator::run(const ast::Block& block) {
  run_block(block);
  return std::move(output_);
}

void Evaluator::write(std::string_view text) {
  heap_.work_on_text(text.size());
  if (capture_ != nullptr) {
    heap_.charge(text.size());
    capture_->append(text);
    return;
  }
  if (text.size() > heap_.limits().output_bytes - output_.size()) {
    fail(ErrorCode::kLimit, "the template writes more than {} bytes", heap_.limits().output_bytes);
  }
  output_.append(text);
}

Value Evaluator::captured(const ast::Block& block) {
  struct Redirect {
    explicit Redirect(Evaluator& e) : evaluator(e), outer(e.capture_) { e.capture_ = &text; }
    ~Redirect() {
      evaluator.capture_ = outer;
      evaluator.heap_.release(charged);
    }
    Redirect(const Redirect&) = delete;
    Redirect& operator=(const Redirect&) = delete;
    Evaluator& evaluator;
    std::string* outer;
    std::string text;
    std::size_t charged = 0;
  };
  Redirect redirect(*this);
  try {
    run_block(block);
  } catch (...) {
    redirect.charged = redirect.text.size();
    throw;
  }
  redirect.charged = redirect.text.size();
  return heap_.string(redirect.text);
}

Evaluator::Flow Evaluator::run_block(const ast::Block& block) {
  const Nest nest(*this);
  for (const ast::Statement& statement : block) {
    line_ = statement.line;
    heap_.work(1);
    const Flow flow = std::visit([this](const auto& node) { return run_node(node); }, statement.node);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::run_node(const ast::Text& node) {
  write(node.text);
  return Flow::kNext;
}

Evaluator::Flow Evaluator::run_node(const ast::Output& node) {
  const Value value = eval(*node.value);
  if (const std::string* text = value.text()) {
    write(*text);
  } else {
    write(str_of(heap_, value));
  }
  return Flow::kNext;
}

Evaluator::Flow Evaluator::run_node(const ast::If& node) {
  for (const ast::Branch& branch : node.branches) {
    if (branch.condition == nullptr || eval(*branch.condition).truthy()) return run_block(branch.body);
  }
  return Flow::kNext;
}

std::vector<Value> Evaluator::filtered(const ast::For& node, std::vector<Value> items) {
  if (node.filter == nullptr) return items;
  std::vector<Value> chosen;
  for (Value& item : items) {
    const Inner inner(*this, scope_);
    assign(node.target, item);
    if (eval(*node.filter).truthy()) chosen.push_back(std::move(item));
  }
  return chosen;
}

Evaluator::Flow Evaluator::run_node(const ast::For& node) {
  std::vector<Value> items = filtered(node, elements(heap_, eval(*node.items)));
  if (items.empty()) {
    const Inner inner(*this, scope_);
    return run_block(node.otherwise);
  }
  const std::shared_ptr<LoopState> loop = heap_.loop(std::move(items));
  for (; loop->index < loop->items.size(); ++loop->index) {
    heap_.work(1);
    const Inner inner(*this, scope_);
    assign(node.target, loop->items[loop->index]);
    set_name("loop", loop);
    if (run_block(node.body) == Flow::kBreak) break;
  }
  return Flow::kNext;
}

void Evaluator::set_name(const std::string& name, Value value) {
  const auto [it, added] = scope_->names.insert_or_assign(name, std::move(value));
  if (added) scope_->charge.grow(2 * sizeof(Value) + name.size());
}

void Evaluator::assign(const ast::Target& target, const Value& value) {
  if (target.unpacks) {
    const std::vector<Value> parts = elements(heap_, value);
    if (parts.size() != target.parts.size()) {
      fail("cannot unpack {} values into {} names", parts.size(), target.parts.size());
    }
    for (std::size_t i = 0; i < parts.size(); ++i) assign(target.parts[i], parts[i]);
    return;
  }
  if (target.attribute.empty()) {
    set_name(target.name, value);
    return;
  }
  const Value* object = lookup(target.name);
  const auto* space = object == nullptr ? nullptr : object->get<std::shared_ptr<Namespace>>();
  if (space == nullptr) fail("cannot assign attribute on non-namespace object");
  const auto [it, added] = (*space)->values.insert_or_assign(target.attribute, value);
  if (added) (*space)->charge.grow(2 * sizeof(Value) + target.attribute.size());
}

Evaluator::Flow Evaluator::run_node(const ast::Set& node) {
  assign(node.target, eval(*node.value));
  return Flow::kNext;
}

Value Evaluator::apply_filters(const std::vector<ast::ExprPtr>& filters, Value value) {
  for (const ast::ExprPtr& expr : filters) {
    const auto& node = std::get<ast::Filter>(expr->node);
    Args args = eval_arguments(node.arguments);
    line_ = expr->line;
    value = filter(node.name, value, std::move(args));
  }
  return value;
}

Evaluator::Flow Evaluator::run_node(const ast::SetBlock& node) {
  Value text;
  {
    const Inner inner(*this, scope_);
    text = captured(node.body);
  }
  assign(node.target, apply_filters(node.filters, std::move(text)));
  return Flow::kNext;
}

Evaluator::Flow Evaluator::run_node(const ast::FilterBlock& node) {
  Value text;
  {
    const Inner inner(*this, scope_);
    text = captured(node.body);
  }
  write(str_of(heap_, apply_filters(node.filters, std::move(text))));
  return Flow::kNext;
}

Evaluator::Flow Evaluator::run_node(const ast::With& node) {
  std::vector<Value> values;
  for (const auto& [target, expr] : node.values) values.push_back(eval(*expr));
  const Inner inner(*this, scope_);
  for (std::size_t i = 0; i < values.size(); ++i) assign(node.values[i].first, values[i]);
  return run_block(node.body);
}

Evaluator::Flow Evaluator::run_node(const ast::Plain& node) {
  const Inner inner(*this, scope_);
  return run_block(node.body);
}

Evaluator::Flow Evaluator::run_node(const ast::Macro& node) {
  set_name(node.name, make_macro(node));
  return Flow::kNext;
}

Evaluator::Flow Evaluator::run_node(const ast::CallBlock& node) {
  const auto& call_node = std::get<ast::Call>(node.call->node);
  const Value callee = eval(*call_node.callee);
  Args args = eval_arguments(call_node.arguments);
  args.named.emplace_back("caller", make_macro(node.caller));
  write(str_of(heap_, call(callee, std::move(args))));
  return Flow::kNext;
}

Value Evaluator::make_macro(const ast::Macro& macro) {
  // The scope may hold the macro: it is let go at the end of the render.
  const auto scope = std::make_shared<std::shared_ptr<Scope>>(scope_);
  heap_.at_end([scope] { scope->reset(); });
  return heap_.callable(macro.name, [&macro, scope](Evaluator& evaluator, Args& args) {
    return evaluator.call_macro(macro, *scope, args);
  });
}

Value Evaluator::call_macro(const ast::Macro& macro, const std::shared_ptr<Scope>& scope, Args& args) {
  if (args.positional.size() > macro.parameters.size()) {
    fail("macro '{}' takes not more than {} argument(s)", macro.name, macro.parameters.size());
  }
  const Inner inner(*this, scope);
  const std::size_t given = args.positional.size();
  std::vector<bool> used(args.named.size(), false);
  for (std::size_t i = 0; i < macro.parameters.size(); ++i) {
    const ast::Parameter& parameter = macro.parameters[i];
    std::optional<Value> value;
    if (i < given) value = args.positional[i];
    for (std::size_t n = 0; n < args.named.size(); ++n) {
      if (args.named[n].first != parameter.name) continue;
      if (value) fail("macro '{}' got several values for '{}'", macro.name, parameter.name);
      value = args.named[n].second;
      used[n] = true;
    }
    if (!value && parameter.otherwise != nullptr) value = eval(*parameter.otherwise);
    if (!value) value = heap_.undefined(fmt::format("parameter '{}' was not provided", parameter.name));
    set_name(parameter.name, *value);
  }
  for (std::size_t n = 0; n < args.named.size(); ++n) {
    if (used[n]) continue;
    if (args.named[n].first != "caller") {
      fail("macro '{}' takes no keyword argument '{}'", macro.name, args.named[n].first);
    }
    set_name("caller", args.named[n].second);
  }
  return captured(macro.body);
}

}  // namespace sluice::text::jinja

// Runs a parsed template.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/jinja/arguments.h"
#include "text/jinja/ast.h"
#include "text/jinja/heap.h"
#include "text/jinja/value.h"

namespace sluice::text::jinja {

/// Names visible in one place. Loops and macros open a scope of their own; `if` does not.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::unordered_map<std::string, Value> names;
  Charge charge;
};

/// One render. Throws Failure.
class Evaluator {
 public:
  Evaluator(Heap& heap, std::unordered_map<std::string, Value> variables);
  ~Evaluator();
  Evaluator(const Evaluator&) = delete;
  Evaluator& operator=(const Evaluator&) = delete;

  std::string run(const ast::Block& block);

  /// The line of the template being run, for messages.
  [[nodiscard]] int line() const { return line_; }

  // For filters, tests, methods and functions:
  Heap& heap() { return heap_; }
  Value call(const Value& callee, Args args);
  Value filter(const std::string& name, const Value& input, Args args);
  bool test(const std::string& name, const Value& input, Args args);
  /// value.name: a method, an attribute or an entry of a dict.
  Value attribute(const Value& object, const std::string& name);
  /// value[key]: an entry first, then as an attribute.
  Value subscript(const Value& object, const Value& key);

 private:
  enum class Flow { kNext, kBreak, kContinue };

  /// Counts nested evaluation while it lives.
  class Nest;

  Flow run_block(const ast::Block& block);
  Flow run_node(const ast::Text& node);
  Flow run_node(const ast::Output& node);
  Flow run_node(const ast::If& node);
  Flow run_node(const ast::For& node);
  Flow run_node(const ast::Set& node);
  Flow run_node(const ast::SetBlock& node);
  Flow run_node(const ast::Macro& node);
  Flow run_node(const ast::CallBlock& node);
  Flow run_node(const ast::FilterBlock& node);
  Flow run_node(const ast::With& node);
  Flow run_node(const ast::Plain& node);
  Flow run_node(const ast::Break&) { return Flow::kBreak; }
  Flow run_node(const ast::Continue&) { return Flow::kContinue; }

  Value eval(const ast::Expr& expr);
  Value eval_node(const ast::NoneLiteral&) { return None{}; }
  Value eval_node(bool value) { return value; }
  Value eval_node(std::int64_t value) { return value; }
  Value eval_node(double value) { return value; }
  Value eval_node(const std::string& text) { return heap_.string(text); }
  Value eval_node(const ast::Name& node);
  Value eval_node(const ast::ListDisplay& node);
  Value eval_node(const ast::DictDisplay& node);
  Value eval_node(const ast::Unary& node);
  Value eval_node(const ast::Binary& node);
  Value eval_node(const ast::Concat& node);
  Value eval_node(const ast::Compare& node);
  Value eval_node(const ast::Conditional& node);
  Value eval_node(const ast::Attribute& node);
  Value eval_node(const ast::Index& node);
  Value eval_node(const ast::Slice& node);
  Value eval_node(const ast::Call& node);
  Value eval_node(const ast::Filter& node);
  Value eval_node(const ast::Test& node);

  Args eval_arguments(const ast::Arguments& arguments);
  Value apply_filters(const std::vector<ast::ExprPtr>& filters, Value value);
  Value make_macro(const ast::Macro& macro);
  Value call_macro(const ast::Macro& macro, const std::shared_ptr<Scope>& scope, Args& args);
  Value loop_attribute(const std::shared_ptr<LoopState>& loop, const std::string& name);
  void assign(const ast::Target& target, const Value& value);
  void set_name(const std::string& name, Value value);
  std::vector<Value> filtered(const ast::For& node, std::vector<Value> items);
  [[nodiscard]] const Value* lookup(const std::string& name) const;

  /// Runs `block` in the current scope and returns what it wrote.
  Value captured(const ast::Block& block);
  void write(std::string_view text);

  /// Makes a new scope inside `parent` current while it lives.
  class Inner;

  Heap& heap_;
  std::shared_ptr<Scope> globals_;
  std::shared_ptr<Scope> scope_;
  std::string output_;
  std::string* capture_ = nullptr;  // where text goes when not to the output
  int depth_ = 0;
  int line_ = 1;
};

}  // namespace sluice::text::jinja

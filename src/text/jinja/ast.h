// The tree of a parsed template.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace sluice::text::jinja::ast {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct NoneLiteral {};
struct Name {
  std::string name;
};
struct ListDisplay {
  std::vector<ExprPtr> items;
  bool tuple = false;
};
struct DictDisplay {
  std::vector<std::pair<ExprPtr, ExprPtr>> items;
};
enum class UnaryOp { kNot, kMinus, kPlus };
struct Unary {
  UnaryOp op;
  ExprPtr operand;
};
enum class BinaryOp { kOr, kAnd, kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };
struct Binary {
  BinaryOp op;
  ExprPtr left;
  ExprPtr right;
};
/// a ~ b ~ c
struct Concat {
  std::vector<ExprPtr> parts;
};
enum class CompareOp { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };
/// a < b <= c: each operand is evaluated once.
struct Compare {
  ExprPtr first;
  std::vector<std::pair<CompareOp, ExprPtr>> rest;
};
struct Conditional {
  ExprPtr condition;
  ExprPtr then;
  ExprPtr otherwise;  // may be null
};
struct Attribute {
  ExprPtr object;
  std::string name;
};
struct Index {
  ExprPtr object;
  ExprPtr key;
};
struct Slice {
  ExprPtr object;
  ExprPtr start;  // each may be null
  ExprPtr stop;
  ExprPtr step;
};
struct Arguments {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr more_positional;  // *args, may be null
  ExprPtr more_named;       // **kwargs, may be null
};
struct Call {
  ExprPtr callee;
  Arguments arguments;
};
struct Filter {
  ExprPtr input;  // null in filter blocks, which bring their own
  std::string name;
  Arguments arguments;
};
struct Test {
  ExprPtr input;
  std::string name;
  Arguments arguments;
  bool negated = false;
};

struct Expr {
  int line = 1;
  int depth = 1;  // of the tree below, bounded so that walking and destroying it cannot exhaust the stack
  std::variant<NoneLiteral, bool, std::int64_t, double, std::string, Name, ListDisplay, DictDisplay, Unary,
               Binary, Concat, Compare, Conditional, Attribute, Index, Slice, Call, Filter, Test>
      node;
};

struct Statement;
using Block = std::vector<Statement>;

/// What a value is assigned to: a name, an attribute of a namespace, or several of them.
struct Target {
  std::string name;
  std::string attribute;      // empty for a plain name
  std::vector<Target> parts;  // not empty for unpacking; then the names are unused
  bool unpacks = false;
};

struct Text {
  std::string text;
};
struct Output {
  ExprPtr value;
};
struct Branch {
  ExprPtr condition;  // null for else
  Block body;
};
struct If {
  std::vector<Branch> branches;
};
struct For {
  Target target;
  ExprPtr items;
  ExprPtr filter;  // may be null
  Block body;
  Block otherwise;
};
struct Set {
  Target target;
  ExprPtr value;
};
struct SetBlock {
  Target target;
  std::vector<ExprPtr> filters;  // each a Filter without input
  Block body;
};
struct Parameter {
  std::string name;
  ExprPtr otherwise;  // may be null
};
struct Macro {
  std::string name;
  std::vector<Parameter> parameters;
  Block body;
};
struct CallBlock {
  Macro caller;
  ExprPtr call;  // always a Call
};
struct FilterBlock {
  std::vector<ExprPtr> filters;
  Block body;
};
struct With {
  std::vector<std::pair<Target, ExprPtr>> values;
  Block body;
};
/// A block that only marks its contents.
struct Plain {
  Block body;
};
struct Break {};
struct Continue {};

struct Statement {
  int line = 1;
  std::variant<Text, Output, If, For, Set, SetBlock, Macro, CallBlock, FilterBlock, With, Plain, Break,
               Continue>
      node;
};

}  // namespace sluice::text::jinja::ast

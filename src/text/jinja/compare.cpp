// Equality, order and membership (operators.h).
#include <algorithm>

#include "text/jinja/operators.h"
#include "text/jinja/text_ops.h"

namespace sluice::text::jinja {
namespace {

// Containers that were appended to may hold themselves; comparing them must end.
class Comparison {
 public:
  explicit Comparison(Heap& heap) : heap_(heap) {}

  bool equal(const Value& a, const Value& b) {
    heap_.work(1);
    if (const auto order = numbers(a, b)) return *order == 0;
    if (a.text() != nullptr && b.text() != nullptr) {
      heap_.work_on_text(std::min(a.text()->size(), b.text()->size()));
      return *a.text() == *b.text();
    }
    if (a.list() != nullptr && b.list() != nullptr) return equal_lists(*a.list(), *b.list());
    if (a.dict() != nullptr && b.dict() != nullptr) return equal_dicts(*a.dict(), *b.dict());
    if (a.data().index() != b.data().index()) return false;
    if (a.is_none() || a.is_undefined()) return true;
    if (const auto* one = a.get<std::shared_ptr<Namespace>>())
      return *one == *b.get<std::shared_ptr<Namespace>>();
    if (const auto* one = a.get<std::shared_ptr<LoopState>>())
      return *one == *b.get<std::shared_ptr<LoopState>>();
    if (const auto* one = a.get<std::shared_ptr<Callable>>())
      return *one == *b.get<std::shared_ptr<Callable>>();
    return false;  // only NaN is left
  }

  bool less(const Value& a, const Value& b) {
    heap_.work(1);
    require_defined(a);
    require_defined(b);
    if (const auto order = numbers(a, b)) return *order < 0;
    if (as_double(a) && as_double(b)) return false;  // with NaN
    if (a.text() != nullptr && b.text() != nullptr) {
      heap_.work_on_text(std::min(a.text()->size(), b.text()->size()));
      return *a.text() < *b.text();  // bytes of UTF-8 have the order of code points
    }
    const List* one = a.list();
    const List* two = b.list();
    if (one != nullptr && two != nullptr && one->tuple == two->tuple) {
      const Deeper deeper(*this);
      for (std::size_t i = 0; i < std::min(one->items.size(), two->items.size()); ++i) {
        if (!equal(one->items[i], two->items[i])) return less(one->items[i], two->items[i]);
      }
      return one->items.size() < two->items.size();
    }
    fail("'<' not supported between instances of '{}' and '{}'", a.type_name(), b.type_name());
  }

 private:
  struct Deeper {
    explicit Deeper(Comparison& c) : comparison(c) {
      if (++comparison.depth_ > kMaxValueDepth) {
        fail(ErrorCode::kLimit, "values nested deeper than {} levels", kMaxValueDepth);
      }
    }
    ~Deeper() { --comparison.depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;
    Comparison& comparison;
  };

  // The sign of a - b for numbers that can be ordered.
  static std::optional<int> numbers(const Value& a, const Value& b) {
    const auto i = as_integer(a);
    const auto j = as_integer(b);
    if (i && j) return *i < *j ? -1 : *i > *j ? 1 : 0;
    const auto exact = [](const Value& v) -> std::optional<long double> {
      if (const auto* big = v.get<BigInt>()) return static_cast<long double>(big->value);
      if (const auto integer = as_integer(v)) return static_cast<long double>(*integer);
      if (const double* number = v.get<double>()) return static_cast<long double>(*number);
      return std::nullopt;
    };
    const auto x = exact(a);
    const auto y = exact(b);
    if (!x || !y) return std::nullopt;
    if (*x < *y) return -1;
    if (*x > *y) return 1;
    return *x == *y ? std::optional<int>(0) : std::nullopt;
  }

  bool equal_lists(const List& a, const List& b) {
    if (&a == &b) return true;
    if (a.tuple != b.tuple || a.items.size() != b.items.size()) return false;
    const Deeper deeper(*this);
    for (std::size_t i = 0; i < a.items.size(); ++i) {
      if (!equal(a.items[i], b.items[i])) return false;
    }
    return true;
  }

  bool equal_dicts(const Dict& a, const Dict& b) {
    if (&a == &b) return true;
    if (a.entries.size() != b.entries.size()) return false;
    const Deeper deeper(*this);
    for (const auto& [key, at] : a.index) {
      heap_.work(1);
      const auto it = b.index.find(key);
      if (it == b.index.end() || !equal(a.entries[at].second, b.entries[it->second].second)) return false;
    }
    return true;
  }

  Heap& heap_;
  int depth_ = 0;
};

bool contains(Heap& heap, const Value& container, const Value& value) {
  if (const std::string* text = container.text()) {
    require_defined(value);
    if (value.text() == nullptr) {
      fail("'in <string>' requires string as left operand, not {}", value.type_name());
    }
    heap.work_on_text(text->size());
    return find_text(*text, *value.text()) != std::string::npos;
  }
  if (const Dict* dict = container.dict()) {
    return dict->index.contains(dict_key(heap, value));
  }
  if (const List* list = container.list()) {
    return std::any_of(list->items.begin(), list->items.end(),
                       [&](const Value& item) { return equal(heap, item, value); });
  }
  if (container.is_undefined()) return false;
  fail("argument of type '{}' is not iterable", container.type_name());
}

}  // namespace

bool equal(Heap& heap, const Value& a, const Value& b) {
  return Comparison(heap).equal(a, b);
}

bool less(Heap& heap, const Value& a, const Value& b) {
  return Comparison(heap).less(a, b);
}

bool compare(Heap& heap, ast::CompareOp op, const Value& left, const Value& right) {
  switch (op) {
    case ast::CompareOp::kEqual:
      return equal(heap, left, right);
    case ast::CompareOp::kNotEqual:
      return !equal(heap, left, right);
    case ast::CompareOp::kLess:
      return less(heap, left, right);
    case ast::CompareOp::kGreater:
      return less(heap, right, left);
    case ast::CompareOp::kLessEqual:
      return less(heap, left, right) || equal(heap, left, right);
    case ast::CompareOp::kGreaterEqual:
      return less(heap, right, left) || equal(heap, left, right);
    case ast::CompareOp::kIn:
      return contains(heap, right, left);
    case ast::CompareOp::kNotIn:
      return !contains(heap, right, left);
  }
  return false;
}

}  // namespace sluice::text::jinja

// Values of the template language: Python's, as far as templates can see.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace sluice::text::jinja {

class Heap;
class Evaluator;
struct Args;
struct Text;
struct List;
struct Dict;
struct Namespace;
struct LoopState;
struct Callable;

/// A name or attribute that is not there. Falsy, prints nothing; most other uses are errors that say `why`.
struct Undefined {
  std::shared_ptr<const Text> why;
};
struct None {
  bool operator==(const None&) const = default;
};
/// An integer from JSON above the signed 64-bit range. It prints exactly and computes as a float.
struct BigInt {
  std::uint64_t value = 0;
};

/// A value, cheap to copy: strings and containers are shared.
class Value {
 public:
  using Data = std::variant<Undefined, None, bool, std::int64_t, BigInt, double, std::shared_ptr<const Text>,
                            std::shared_ptr<List>, std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
                            std::shared_ptr<LoopState>, std::shared_ptr<Callable>>;

  Value() : data_(None{}) {}
  Value(None none) : data_(none) {}                                      // NOLINT: values convert freely
  Value(Undefined undefined) : data_(std::move(undefined)) {}            // NOLINT
  Value(bool value) : data_(value) {}                                    // NOLINT
  Value(std::int64_t value) : data_(value) {}                            // NOLINT
  Value(BigInt value) : data_(value) {}                                  // NOLINT
  Value(double value) : data_(value) {}                                  // NOLINT
  Value(std::shared_ptr<const Text> value) : data_(std::move(value)) {}  // NOLINT
  Value(std::shared_ptr<List> value) : data_(std::move(value)) {}        // NOLINT
  Value(std::shared_ptr<const Dict> value) : data_(std::move(value)) {}  // NOLINT
  Value(std::shared_ptr<Namespace> value) : data_(std::move(value)) {}   // NOLINT
  Value(std::shared_ptr<LoopState> value) : data_(std::move(value)) {}   // NOLINT
  Value(std::shared_ptr<Callable> value) : data_(std::move(value)) {}    // NOLINT
  template <class T>
  Value(T*) = delete;  // a literal would become a bool

  [[nodiscard]] const Data& data() const { return data_; }

  template <class T>
  [[nodiscard]] bool holds() const {
    return std::holds_alternative<T>(data_);
  }
  template <class T>
  [[nodiscard]] const T* get() const {
    return std::get_if<T>(&data_);
  }

  [[nodiscard]] bool is_undefined() const { return holds<Undefined>(); }
  [[nodiscard]] bool is_none() const { return holds<None>(); }

  /// The payload of that kind, or nullptr. Text is valid UTF-8.
  [[nodiscard]] const std::string* text() const;
  [[nodiscard]] List* list() const;  // of lists and tuples alike
  [[nodiscard]] const Dict* dict() const;

  /// Whether it counts as true in a condition.
  [[nodiscard]] bool truthy() const;

  /// The name of its type in Python, for messages.
  [[nodiscard]] std::string_view type_name() const;

 private:
  Data data_;
};

/// A share of the memory a render may use, given back with the value it belongs to.
class Charge {
 public:
  Charge() = default;
  Charge(Heap& heap, std::size_t bytes);
  ~Charge();
  Charge(Charge&& other) noexcept
      : heap_(std::exchange(other.heap_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Charge& operator=(Charge&& other) noexcept {
    std::swap(heap_, other.heap_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  void grow(std::size_t bytes);

 private:
  Heap* heap_ = nullptr;
  std::size_t bytes_ = 0;
};

struct Text {
  std::string bytes;
  std::size_t length = 0;  // code points
  Charge charge;
};

struct List {
  std::vector<Value> items;
  bool tuple = false;
  int depth = 1;  // of containers within containers, when it was made
  bool kept = false;
  Charge charge;
};

/// Entries in the order of insertion. Never changes once made.
struct Dict {
  std::vector<std::pair<Value, Value>> entries;
  std::unordered_map<std::string, std::size_t> index;  // by dict_key()
  int depth = 1;
  Charge charge;

  [[nodiscard]] const Value* find(std::string_view text_key) const;
};

struct Namespace {
  std::unordered_map<std::string, Value> values;
  Charge charge;
};

/// The `loop` variable.
struct LoopState {
  std::vector<Value> items;
  std::size_t index = 0;
  std::optional<Value> last_seen;  // by loop.changed()
  bool kept = false;
  int nesting = 0;  // of the containers in `items`
  Charge charge;
};

struct Callable {
  std::string name;
  std::function<Value(Evaluator&, Args&)> call;
  int depth = 0;  // of the containers it holds on to
  Charge charge;
};

}  // namespace sluice::text::jinja

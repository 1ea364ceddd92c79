// Makes values and keeps the accounts of one render: memory alive and steps taken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/failure.h"
#include "text/jinja/limits.h"
#include "text/jinja/value.h"

namespace sluice::text::jinja {

/// Outlives every value it made. Throws Failure (kLimit) when a render asks for too much.
class Heap {
 public:
  explicit Heap(const Limits& limits) : limits_(limits) {}
  ~Heap();
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  Value string(std::string bytes);
  Value string(std::string_view bytes) { return string(std::string(bytes)); }
  Value string(const char* bytes) { return string(std::string(bytes)); }
  Value list(std::vector<Value> items) { return sequence(std::move(items), false); }
  Value tuple(std::vector<Value> items) { return sequence(std::move(items), true); }
  /// A later entry replaces the value of an earlier one with an equal key. Keys must be hashable.
  Value dict(std::vector<std::pair<Value, Value>> entries);
  Value name_space(std::unordered_map<std::string, Value> values);
  /// `depth`: of the containers that `call` holds on to.
  Value callable(std::string name, std::function<Value(Evaluator&, Args&)> call, int depth = 0);
  std::shared_ptr<LoopState> loop(std::vector<Value> items);
  Value undefined(std::string why);

  /// Appends to a list; such lists live until the end of the render, for they may hold themselves.
  void append(const std::shared_ptr<List>& list, Value value);

  /// Runs `clear` at the end of the render: breaks the cycles that counted references cannot.
  void at_end(std::function<void()> clear);

  /// Counts work; call it before doing work that grows with its input.
  void work(std::uint64_t steps) {
    if (steps > limits_.steps - steps_)
      fail(ErrorCode::kLimit, "the template takes more than {} steps", limits_.steps);
    steps_ += steps;
  }
  void work_on_text(std::size_t bytes) { work(bytes / 64); }

  /// Fails unless `bytes` more could be kept: for text that grows before it becomes a value.
  void need_room(std::size_t bytes) const {
    if (bytes > limits_.memory_bytes - used_) no_room();
  }
  void charge(std::size_t bytes) {
    need_room(bytes);
    used_ += bytes;
  }
  void release(std::size_t bytes) { used_ -= bytes; }
  [[nodiscard]] const Limits& limits() const { return limits_; }

 private:
  [[noreturn]] void no_room() const;
  Value sequence(std::vector<Value> items, bool tuple);

  Limits limits_;
  std::size_t used_ = 0;
  std::uint64_t steps_ = 0;
  std::vector<std::function<void()>> at_end_;
};

/// Text under construction that stays within the memory of the render.
class TextBuilder {
 public:
  explicit TextBuilder(Heap& heap) : heap_(heap) {}
  void add(std::string_view s) {
    heap_.need_room(text_.size() + s.size());
    heap_.work_on_text(s.size());
    text_.append(s);
  }
  [[nodiscard]] std::string& text() { return text_; }
  Value finish() { return heap_.string(std::move(text_)); }

 private:
  Heap& heap_;
  std::string text_;
};

/// A spelling of `key` under which equal keys are equal: 1, 1.0 and true are one key, as in Python. Fails for
/// values that cannot be keys.
std::string dict_key(Heap& heap, const Value& key);

/// The depth of containers in `value`: 0 for anything else. Bounded, so that destroying a value cannot
/// exhaust the stack; objects that are emptied at the end of the render (at_end) do not count.
int depth_of(const Value& value);

}  // namespace sluice::text::jinja

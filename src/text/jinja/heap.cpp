#include "text/jinja/heap.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "text/utf8.h"

namespace sluice::text::jinja {
namespace {

constexpr std::size_t kObjectBytes = 96;      // a shared object and its bookkeeping
constexpr std::size_t kDictEntryBytes = 192;  // two values, and the key again in the index
constexpr std::size_t kCallableBytes = 256;

}  // namespace

Charge::Charge(Heap& heap, std::size_t bytes) : heap_(&heap), bytes_(bytes) {
  heap.charge(bytes);
}

Charge::~Charge() {
  if (heap_ != nullptr) heap_->release(bytes_);
}

void Charge::grow(std::size_t bytes) {
  heap_->charge(bytes);
  bytes_ += bytes;
}

Heap::~Heap() {
  for (const auto& clear : at_end_) clear();
}

void Heap::no_room() const {
  fail(ErrorCode::kLimit, "the template's values take more than {} bytes", limits_.memory_bytes);
}

void Heap::at_end(std::function<void()> clear) {
  charge(kObjectBytes);
  at_end_.push_back(std::move(clear));
}

Value Heap::string(std::string bytes) {
  Charge charge(*this, kObjectBytes + bytes.size());
  work_on_text(bytes.size());
  const std::size_t length = utf8_length(bytes);
  return std::make_shared<const Text>(Text{std::move(bytes), length, std::move(charge)});
}

Value Heap::undefined(std::string why) {
  Charge charge(*this, kObjectBytes + why.size());
  return Undefined{std::make_shared<const Text>(Text{std::move(why), 0, std::move(charge)})};
}

int depth_of(const Value& value) {
  if (const List* list = value.list()) return list->depth;
  if (const Dict* dict = value.dict()) return dict->depth;
  if (const auto* callable = value.get<std::shared_ptr<Callable>>()) return (*callable)->depth;
  if (const auto* loop = value.get<std::shared_ptr<LoopState>>()) return (*loop)->nesting;
  return 0;
}

namespace {

int depth_above(int below) {
  if (below >= kMaxValueDepth) fail(ErrorCode::kLimit, "values nested deeper than {} levels", kMaxValueDepth);
  return below + 1;
}

int depth_above(const std::vector<Value>& items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, depth_of(item));
  return depth_above(depth);
}

}  // namespace

Value Heap::sequence(std::vector<Value> items, bool tuple) {
  Charge charge(*this, kObjectBytes + items.size() * sizeof(Value));
  work(items.size() / 8);
  const int depth = depth_above(items);
  return std::make_shared<List>(List{std::move(items), tuple, depth, false, std::move(charge)});
}

Value Heap::dict(std::vector<std::pair<Value, Value>> entries) {
  auto dict = std::make_shared<Dict>();
  dict->charge = Charge(*this, kObjectBytes + entries.size() * kDictEntryBytes);
  work(entries.size());
  int depth = 0;
  for (auto& [key, value] : entries) {
    std::string spelled = dict_key(*this, key);
    dict->charge.grow(spelled.size());
    depth = std::max({depth, depth_of(key), depth_of(value)});
    const auto [it, added] = dict->index.try_emplace(std::move(spelled), dict->entries.size());
    if (added) {
      dict->entries.emplace_back(std::move(key), std::move(value));
    } else {
      dict->entries[it->second].second = std::move(value);
    }
  }
  dict->depth = depth_above(depth);
  return std::shared_ptr<const Dict>(std::move(dict));
}

Value Heap::name_space(std::unordered_map<std::string, Value> values) {
  auto space = std::make_shared<Namespace>();
  space->charge = Charge(*this, kObjectBytes + values.size() * kDictEntryBytes);
  space->values = std::move(values);
  at_end([space] { space->values.clear(); });
  return space;
}

Value Heap::callable(std::string name, std::function<Value(Evaluator&, Args&)> call, int depth) {
  Charge charge(*this, kCallableBytes);
  return std::make_shared<Callable>(Callable{std::move(name), std::move(call), depth, std::move(charge)});
}

std::shared_ptr<LoopState> Heap::loop(std::vector<Value> items) {
  auto loop = std::make_shared<LoopState>();
  loop->charge = Charge(*this, kObjectBytes + items.size() * sizeof(Value));
  loop->nesting = depth_above(items);
  loop->items = std::move(items);
  return loop;
}

void Heap::append(const std::shared_ptr<List>& list, Value value) {
  if (!list->kept) {
    list->kept = true;
    at_end([list] { list->items.clear(); });
  }
  list->charge.grow(2 * sizeof(Value));  // a vector grows by doubling
  list->items.push_back(std::move(value));
}

const Value* Dict::find(std::string_view text_key) const {
  const auto it = index.find("s" + std::string(text_key));
  return it == index.end() ? nullptr : &entries[it->second].second;
}

std::string dict_key(Heap& heap, const Value& key) {
  heap.work(1);
  if (const std::string* text = key.text()) return "s" + *text;
  if (const auto* flag = key.get<bool>()) return *flag ? "i1" : "i0";
  if (const auto* integer = key.get<std::int64_t>()) return "i" + std::to_string(*integer);
  if (const auto* big = key.get<BigInt>()) return "i" + std::to_string(big->value);
  if (const auto* number = key.get<double>()) {
    if (*number == std::floor(*number) && std::abs(*number) < 9e18) {
      return "i" + std::to_string(static_cast<std::int64_t>(*number));
    }
    return "f" + std::to_string(std::bit_cast<std::uint64_t>(*number));
  }
  if (key.is_none()) return "n";
  if (key.is_undefined()) return "u";
  if (const List* tuple = key.list(); tuple != nullptr && tuple->tuple) {
    std::string spelled = "t";
    for (const Value& item : tuple->items) {
      const std::string inner = dict_key(heap, item);
      heap.need_room(spelled.size() + inner.size());
      spelled += std::to_string(inner.size()) + ":" + inner;
    }
    return spelled;
  }
  fail("unhashable type: '{}'", key.type_name());
}

}  // namespace sluice::text::jinja

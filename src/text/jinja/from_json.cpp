#include "text/jinja/from_json.h"

#include <limits>

#include "text/utf8.h"

namespace sluice::text::jinja {
namespace {

std::string clean(const std::string& bytes) {
  return is_valid_utf8(bytes) ? bytes : replace_invalid_utf8(bytes);
}

Value convert(Heap& heap, const Json& json, int depth) {
  heap.work(1);
  if (depth > kMaxValueDepth) fail(ErrorCode::kLimit, "input nested deeper than {} levels", kMaxValueDepth);
  switch (json.type()) {
    case Json::value_t::null:
      return None{};
    case Json::value_t::boolean:
      return json.get<bool>();
    case Json::value_t::number_integer:
      return json.get<std::int64_t>();
    case Json::value_t::number_unsigned: {
      const auto value = json.get<std::uint64_t>();
      constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
      return value <= kMost ? Value(static_cast<std::int64_t>(value)) : Value(BigInt{value});
    }
    case Json::value_t::number_float:
      return json.get<double>();
    case Json::value_t::string:
      return heap.string(clean(json.get_ref<const std::string&>()));
    case Json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const Json& item : json) items.push_back(convert(heap, item, depth + 1));
      return heap.list(std::move(items));
    }
    case Json::value_t::object: {
      std::vector<std::pair<Value, Value>> entries;
      entries.reserve(json.size());
      for (const auto& [key, value] : json.items()) {
        entries.emplace_back(heap.string(clean(key)), convert(heap, value, depth + 1));
      }
      return heap.dict(std::move(entries));
    }
    default:
      fail("input that is no JSON value");
  }
}

}  // namespace

Value from_json(Heap& heap, const Json& json) {
  return convert(heap, json, 0);
}

}  // namespace sluice::text::jinja

#include "text/model_json.h"

namespace sluice::text {
namespace {

constexpr int kMaxDepth = 64;

struct TooDeep {};

}  // namespace

Result<ModelJson> parse_model_json(std::string_view text, std::string_view what) {
  const auto guard = [](int depth, ModelJson::parse_event_t, ModelJson&) {
    if (depth > kMaxDepth) throw TooDeep{};
    return true;
  };
  try {
    return ModelJson::parse(text.begin(), text.end(), guard);
  } catch (const TooDeep&) {
    return make_error(ErrorCode::kLimit, "{}: JSON nested deeper than {} levels", what, kMaxDepth);
  } catch (const ModelJson::parse_error& e) {
    return make_error(ErrorCode::kCorrupt, "{}: not valid JSON at byte {}", what, e.byte);
  } catch (const ModelJson::exception& e) {
    return make_error(ErrorCode::kCorrupt, "{}: not valid JSON: {}", what, e.what());
  }
}

const ModelJson* member(const ModelJson& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

Result<std::string> string_member(const ModelJson& object, const char* key, std::string_view what) {
  const ModelJson* value = member(object, key);
  if (value == nullptr) return std::string();
  if (!value->is_string()) {
    return make_error(ErrorCode::kCorrupt, "{}: {} is a {}, need a string", what, key, value->type_name());
  }
  return value->get<std::string>();
}

Result<bool> bool_member(const ModelJson& object, const char* key, bool otherwise, std::string_view what) {
  const ModelJson* value = member(object, key);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) {
    return make_error(ErrorCode::kCorrupt, "{}: {} is a {}, need a bool", what, key, value->type_name());
  }
  return value->get<bool>();
}

}  // namespace sluice::text

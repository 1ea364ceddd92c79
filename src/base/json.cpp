#include "base/json.h"

namespace sluice {
namespace {

constexpr int kMaxDepth = 128;

// nlohmann's parser is iterative but destroying a deeply nested value recurses: bound the depth first.
bool too_deep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view what) {
  if (too_deep(text)) {
    return make_error(ErrorCode::kLimit, "{}: JSON nested deeper than {} levels", what, kMaxDepth);
  }
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::parse_error& e) {
    return make_error(ErrorCode::kCorrupt, "{}: not valid JSON at byte {}", what, e.byte);
  } catch (const Json::exception& e) {
    return make_error(ErrorCode::kCorrupt, "{}: not valid JSON: {}", what, e.what());
  }
}

std::string dump_json(const Json& value, int indent) {
  return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace sluice

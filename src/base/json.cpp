#include "base/json.h"

#include <array>
#include <optional>

namespace sluice {
namespace {

constexpr int kMaxDepth = 128;
// Finding a key in an object that keeps its order takes time in proportion to its members.
constexpr std::size_t kMaxMembers = 10000;

// nlohmann's parser is iterative, but destroying a deeply nested value recurses: both bounds are checked
// first.
std::optional<std::string> too_much(std::string_view text) {
  std::array<std::size_t, kMaxDepth + 1> members{};
  std::size_t depth = 0;
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
      if (++depth > kMaxDepth) return fmt::format("JSON nested deeper than {} levels", kMaxDepth);
      members[depth] = 0;
    } else if ((c == ']' || c == '}') && depth > 0) {
      --depth;
    } else if (c == ':' && ++members[depth] > kMaxMembers) {
      return fmt::format("a JSON object of more than {} members", kMaxMembers);
    }
  }
  return std::nullopt;
}

}  // namespace

Result<Json> parse_json(std::string_view text, std::string_view what) {
  if (const auto reason = too_much(text)) return make_error(ErrorCode::kLimit, "{}: {}", what, *reason);
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

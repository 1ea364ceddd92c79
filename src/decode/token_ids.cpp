#include "decode/token_ids.h"

#include <charconv>

#include "base/json.h"

namespace sluice::decode {
namespace {

constexpr std::size_t kMostIds = std::size_t{4} << 20;

Error not_an_id(std::string_view found, std::size_t place) {
  return make_error(ErrorCode::kInvalidArgument, "ids: '{}' at place {}: needed a whole number from 0 to {}",
                    found.substr(0, 40), place, INT32_MAX);
}

Result<std::vector<std::int32_t>> from_json(std::string_view text) {
  SLUICE_ASSIGN(const Json root, parse_json(text, "ids"));
  if (!root.is_array())
    return make_error(ErrorCode::kInvalidArgument, "ids: a JSON {} found, needed an array", root.type_name());
  if (root.size() > kMostIds) {
    return make_error(ErrorCode::kLimit, "ids: {} of them, at most {} are taken", root.size(), kMostIds);
  }
  std::vector<std::int32_t> ids;
  ids.reserve(root.size());
  for (const Json& value : root) {
    if (!value.is_number_integer() ||
        (value.is_number_unsigned() && value.get<std::uint64_t>() > INT32_MAX) ||
        (!value.is_number_unsigned() && value.get<std::int64_t>() < 0)) {
      return not_an_id(dump_json(value), ids.size());
    }
    ids.push_back(value.get<std::int32_t>());
  }
  return ids;
}

}  // namespace

Result<std::vector<std::int32_t>> parse_token_ids(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n,";
  const std::size_t start = text.find_first_not_of(" \t\r\n");
  if (start != std::string_view::npos && (text[start] == '[' || text[start] == '{')) return from_json(text);
  std::vector<std::int32_t> ids;
  std::size_t at = text.find_first_not_of(kSpace);
  while (at != std::string_view::npos) {
    const std::size_t end = std::min(text.find_first_of(kSpace, at), text.size());
    const std::string_view word = text.substr(at, end - at);
    std::int32_t id = -1;
    const auto [rest, status] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (status != std::errc{} || rest != word.data() + word.size() || id < 0)
      return not_an_id(word, ids.size());
    if (ids.size() == kMostIds) {
      return make_error(ErrorCode::kLimit, "ids: more than {} of them, the most that are taken", kMostIds);
    }
    ids.push_back(id);
    at = text.find_first_not_of(kSpace, end);
  }
  return ids;
}

Result<void> check_token_ids(const std::vector<std::int32_t>& ids, std::int64_t vocab) {
  if (ids.empty()) return make_error(ErrorCode::kInvalidArgument, "ids: none found, needed at least one");
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab) {
      return make_error(ErrorCode::kInvalidArgument, "ids: token {} at place {}: needed 0 to {}", ids[i], i,
                        vocab - 1);
    }
  }
  return {};
}

}  // namespace sluice::decode

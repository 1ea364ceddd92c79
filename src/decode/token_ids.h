// Token ids given by people: "1,2,3", "[1, 2, 3]".
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice::decode {

/// Reads a list of token ids: a JSON array of integers, or integers separated by commas or spaces. At most
/// 4 million ids. Errors quote what was found and name its place.
Result<std::vector<std::int32_t>> parse_token_ids(std::string_view text);

/// Checks that there is at least one id and that all are below `vocab`.
Result<void> check_token_ids(const std::vector<std::int32_t>& ids, std::int64_t vocab);

}  // namespace sluice::decode

// Sizes as people write and read them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace sluice {

/// "32G", "1.5 GiB", "700MB", "4096": powers of 1024 for G and GiB alike, 1000 for GB. Errors quote the text.
Result<std::uint64_t> parse_size(std::string_view text);

/// "1.5 GiB", "312 KiB", "17 B".
std::string format_size(std::uint64_t bytes);

/// "28.1M", "180.0B", "640": a count of parameters.
std::string format_count(std::uint64_t count);

}  // namespace sluice

// What was hot, kept beside a store from one run to the next.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "base/result.h"

namespace sluice::experts {

/// Writes heats as Heat::relative() gives them, whole or not at all.
Result<void> write_heat(const std::filesystem::path& file, std::span<const float> heat);

/// Reads them back, at most `most`. Errors: a file that is not whole, or not of this kind.
Result<std::vector<float>> read_heat(const std::filesystem::path& file, std::size_t most);

}  // namespace sluice::experts

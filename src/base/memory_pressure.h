// When a program should give memory back, before the kernel takes it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "base/machine.h"

namespace sluice {

/// Share of the last ten seconds, in percent, in which every task of this process's control group (or, where
/// it has none, of the machine) stood still for want of memory; nullopt where the kernel does not tell.
std::optional<double> memory_stall(const std::filesystem::path& root = "/");

/// "full avg10=1.23 ..." of a PSI file.
std::optional<double> parse_stall(std::string_view text);

/// Bytes to give back so that `reserve` stays available: none while half of it is there and nothing stalls;
/// at least a sixteenth of what is `held` while tasks stand still.
std::uint64_t bytes_to_give_back(std::uint64_t available, std::uint64_t reserve, std::uint64_t held,
                                 std::optional<double> stall);

}  // namespace sluice

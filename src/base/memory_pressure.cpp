#include "base/memory_pressure.h"

#include <algorithm>
#include <charconv>
#include <string>

namespace sluice {
namespace {

/// Percent of time without progress from which on memory is given back whatever seems available.
constexpr double kStalled = 10;

}  // namespace

std::optional<double> parse_stall(std::string_view text) {
  constexpr std::string_view kKey = "full avg10=";
  const std::size_t at = text.find(kKey);
  if (at == std::string_view::npos) return std::nullopt;
  double value = 0;
  const char* const begin = text.data() + at + kKey.size();
  const auto [end, ec] = std::from_chars(begin, text.data() + text.size(), value);
  if (ec != std::errc{} || !(value >= 0)) return std::nullopt;
  return value;
}

std::optional<double> memory_stall(const std::filesystem::path& root) {
  if (const auto group = own_group_folder(root)) {
    if (const auto stall = parse_stall(system_file(*group / "memory.pressure"))) return stall;
  }
  return parse_stall(system_file(root / "proc/pressure/memory"));
}

std::uint64_t bytes_to_give_back(std::uint64_t available, std::uint64_t reserve, std::uint64_t held,
                                 std::optional<double> stall) {
  std::uint64_t bytes = available < reserve / 2 ? reserve - available : 0;
  if (stall.value_or(0) >= kStalled) bytes = std::max(bytes, held / 16);
  return std::min(bytes, held);
}

}  // namespace sluice

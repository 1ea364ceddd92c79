#include "base/units.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>

namespace sluice {

Result<std::uint64_t> parse_size(std::string_view text) {
  double number = 0;
  const char* begin = text.data();
  const char* end = begin + text.size();
  const auto [rest, status] = std::from_chars(begin, end, number, std::chars_format::fixed);
  const Error bad = make_error(ErrorCode::kInvalidArgument,
                               "size '{}': needed a number and a unit such as 512M or 32G", text);
  if (status != std::errc{} || number < 0 || !std::isfinite(number)) return bad;
  std::string unit;
  for (const char* p = rest; p != end; ++p) {
    if (*p != ' ') unit += static_cast<char>(std::tolower(static_cast<unsigned char>(*p)));
  }
  double scale = 1;
  if (!unit.empty() && unit != "b") {
    const std::size_t power = std::string_view("kmgt").find(unit[0]);
    if (power == std::string_view::npos) return bad;
    const std::string suffix = unit.substr(1);
    if (suffix != "" && suffix != "ib" && suffix != "b") return bad;
    scale = std::pow(suffix == "b" ? 1000.0 : 1024.0, static_cast<double>(power + 1));
  }
  const double bytes = number * scale;
  if (bytes >= 9.2e18) return bad;
  return static_cast<std::uint64_t>(bytes);
}

std::string format_size(std::uint64_t bytes) {
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return fmt::format("{} B", bytes);
  auto value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : 1, kUnits[unit]);
}

std::string format_count(std::uint64_t count) {
  constexpr std::array kUnits = {"K", "M", "B", "T"};
  if (count < 1000) return fmt::format("{}", count);
  auto value = static_cast<double>(count) / 1000;
  std::size_t unit = 0;
  while (value >= 1000 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.1f}{}", value, kUnits[unit]);
}

}  // namespace sluice

// Statistics of a run: what is read can be told, drawn, and written as it was.
#include <cstdint>
#include <string_view>

#include "experts/statistics_plot.h"
#include "experts/statistics_report.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice;
  const auto json = parse_json({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!json.ok()) return 0;
  const auto read = experts::Statistics::from_json(*json, "fuzz");
  if (!read.ok()) return 0;
  if (experts::statistics_report(*read).empty() || experts::statistics_plot(*read).empty()) __builtin_trap();
  const auto again = experts::Statistics::from_json(read->to_json(), "again");
  if (!again.ok() || again->to_json() != read->to_json()) __builtin_trap();
  return 0;
}

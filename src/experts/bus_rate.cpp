#include "experts/bus_rate.h"

#include <algorithm>
#include <cstring>

#include "experts/record_reader.h"

namespace sluice::experts {

Result<double> measure_bus(backend::Backend& backend, std::size_t record_bytes, double seconds) {
  // Other memory each time, more than caches hold.
  constexpr std::size_t kBytes = std::size_t{256} << 20;
  const std::size_t count = std::max<std::size_t>(kBytes / record_bytes, 2);
  SLUICE_ASSIGN(const auto host, backend.allocate_host(count * record_bytes));
  SLUICE_ASSIGN(const auto device, backend.allocate(count * record_bytes));
  std::memset(host->address(), 1, host->size());
  double bytes = 0;
  double begin = 0;
  double now = 0;
  // The first round is not counted.
  for (int round = 0; round < 2 || now - begin < seconds; ++round) {
    if (round == 1) begin = now;
    for (std::size_t i = 0; i < count; ++i) {
      const auto at = static_cast<std::int64_t>(i * record_bytes);
      backend.copy_beside(device->as<std::byte>(at), host->as<std::byte>(at), record_bytes);
    }
    backend.join_copies();
    backend.synchronise();
    SLUICE_TRY(backend.status());
    now = steady_seconds();
    if (round > 0) bytes += static_cast<double>(count * record_bytes);
  }
  return bytes / (now - begin);
}

}  // namespace sluice::experts

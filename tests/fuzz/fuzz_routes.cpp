// Recorded routes: what is read can be replayed.
#include <cstdint>
#include <string_view>

#include "experts/policy_trace.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sluice::experts;
  const auto trace = parse_route_trace({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!trace.ok()) return 0;
  for (std::size_t policy = 0; policy < kPolicies; ++policy) {
    const auto counts = replay(*trace, static_cast<Policy>(policy), {.slots = 5});
    const auto all = counts.hits + counts.misses + counts.prefill_hits + counts.prefill_misses;
    if (all != trace->ids.size()) __builtin_trap();
  }
  return 0;
}

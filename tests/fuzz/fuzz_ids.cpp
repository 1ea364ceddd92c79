// Token ids as people give them.
#include <cstdint>
#include <string_view>

#include "decode/token_ids.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto ids = sluice::decode::parse_token_ids({reinterpret_cast<const char*>(data), size});
  if (ids.ok()) {
    for (const auto id : *ids) {
      if (id < 0) __builtin_trap();
    }
  }
  return 0;
}

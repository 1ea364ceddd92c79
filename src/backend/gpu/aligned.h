// Whether a kernel may read rows four elements at a time.
#pragma once

#include <cstdint>
#include <initializer_list>

namespace sluice::backend {

/// Whether every one of these addresses (null counts) is a multiple of 16 bytes and every one of these
/// lengths and strides a multiple of 4 elements.
inline std::uint32_t aligned_quads(std::initializer_list<const void*> addresses,
                                   std::initializer_list<std::int64_t> lengths) {
  std::uint64_t bits = 0;
  for (const void* address : addresses) bits |= reinterpret_cast<std::uint64_t>(address) % 16;
  for (const std::int64_t length : lengths) bits |= static_cast<std::uint64_t>(length) % 4;
  return bits == 0 ? 1 : 0;
}

}  // namespace sluice::backend

// How a dense tensor lies in its buffer: in memory, and so in every source that fills one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/buffer.h"
#include "spec/formats.h"

namespace sluice::store {

struct DenseLayout {
  std::size_t scales_offset = 0;  // quantised formats only
  std::size_t biases_offset = 0;
  std::size_t bytes = 0;  // of the whole buffer
};

/// `elements` values in groups of `group`: codes, then bfloat16 scales and biases, each aligned to 64 bytes;
/// float formats are values alone.
constexpr DenseLayout dense_layout(spec::Format format, int group, std::int64_t elements) {
  const auto codes = static_cast<std::size_t>(elements * spec::bits_of(format) / 8);
  if (!spec::is_quantised(format)) return {0, 0, codes};
  constexpr std::size_t kAlign = AlignedBuffer::kDefaultAlignment;
  const auto aligned = [](std::size_t n) { return (n + kAlign - 1) / kAlign * kAlign; };
  const auto sides = static_cast<std::size_t>(elements / group) * sizeof(std::uint16_t);
  DenseLayout layout;
  layout.scales_offset = aligned(codes);
  layout.biases_offset = layout.scales_offset + aligned(sides);
  layout.bytes = layout.biases_offset + sides;
  return layout;
}

}  // namespace sluice::store

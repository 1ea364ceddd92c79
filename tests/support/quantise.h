// The usual MLX affine quantiser, for making test models (model.md 2.4).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace sluice::test {

struct Quantised {
  std::vector<std::uint32_t> codes;
  std::vector<std::uint16_t> scales, biases;  // bfloat16 bits
};

/// Quantises whole rows laid end to end; their length must be a multiple of `group`. bits is 4 or 8.
Quantised quantise(std::span<const float> values, int bits, int group);

}  // namespace sluice::test

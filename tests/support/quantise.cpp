#include "support/quantise.h"

#include <algorithm>
#include <cmath>

#include "base/numbers.h"

namespace sluice::test {

Quantised quantise(std::span<const float> values, int bits, int group) {
  const auto levels = static_cast<float>((1 << bits) - 1);
  const std::size_t per_word = 32 / static_cast<std::size_t>(bits);
  Quantised out;
  out.codes.resize(values.size() / per_word);
  for (std::size_t start = 0; start < values.size(); start += static_cast<std::size_t>(group)) {
    const auto part = values.subspan(start, static_cast<std::size_t>(group));
    const auto [low, high] = std::minmax_element(part.begin(), part.end());
    float scale = std::max((*high - *low) / levels, 1e-7F);
    const bool from_low = std::fabs(*low) > std::fabs(*high);
    if (!from_low) scale = -scale;
    const float edge = from_low ? *low : *high;
    float bias = 0;
    if (const float q0 = std::nearbyint(edge / scale); q0 != 0) {
      scale = edge / q0;
      bias = edge;
    }
    const BFloat16 s = to_bfloat16(scale), b = to_bfloat16(bias);
    out.scales.push_back(s.bits);
    out.biases.push_back(b.bits);
    for (std::size_t i = 0; i < part.size(); ++i) {
      const float q = std::clamp(std::nearbyint((part[i] - to_float(b)) / to_float(s)), 0.0F, levels);
      const std::size_t at = start + i;
      out.codes[at / per_word] |= static_cast<std::uint32_t>(q)
                                  << (static_cast<std::size_t>(bits) * (at % per_word));
    }
  }
  return out;
}

}  // namespace sluice::test

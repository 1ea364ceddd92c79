#include "store/dense_policy.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace sluice::store {
namespace {

/// Decides a token's path, or how much of a sub-layer reaches the residual.
bool steers(std::string_view name) {
  constexpr std::array<std::string_view, 5> kEnds = {".mlp.gate", ".shared_expert_gate",
                                                     ".block_inject_weight", ".in_proj_a", ".in_proj_b"};
  return std::any_of(kEnds.begin(), kEnds.end(), [&](std::string_view end) { return name.ends_with(end); });
}

}  // namespace

DenseFormat packed_dense_format(const DenseInfo& info, DenseBits bits, spec::Format source) {
  if (info.kind != DenseKind::kMatrix) return {spec::Format::kF32, 64};
  const std::int64_t in = info.shape.back();
  if (bits == DenseBits::kSource || steers(info.name) || in % 32 != 0) return {source, 64};
  const bool four = bits == DenseBits::kQ4 && info.name.find(".indexer.") == std::string::npos;
  return {four ? spec::Format::kQ4 : spec::Format::kQ8, in % 64 == 0 ? 64 : 32};
}

spec::NgramLayout packed_ngram_layout(const spec::NgramLayout& source) {
  spec::NgramLayout layout = source;
  if (!spec::is_quantised(source.format) && source.columns % 32 == 0) {
    layout.format = spec::Format::kQ4;
    layout.group = 32;
  }
  return layout;
}

}  // namespace sluice::store

#include "store/parameters.h"

namespace sluice::store {
namespace {

std::uint64_t& part_of(std::string_view name, ParameterCounts& counts) {
  const auto has = [name](std::string_view text) { return name.find(text) != std::string_view::npos; };
  if (name.starts_with("mtp.")) return counts.mtp;
  if (name == "embed_tokens") return counts.embed;
  if (name == "lm_head") return counts.head;
  if (has("hyper_connection")) return counts.hyper;
  if (has(".linear_attn.")) return counts.delta_net;
  if (has(".self_attn.")) return counts.attention;
  if (has(".ple.")) return counts.ple;
  if (has(".mlp.shared_expert.")) return counts.shared_experts;
  return counts.routers;  // mlp.gate and mlp.shared_expert_gate
}

}  // namespace

std::uint64_t ParameterCounts::total() const {
  return experts + ngram + mtp + delta_net + attention + hyper + embed + head + shared_experts + routers +
         ple + vision;
}

ParameterCounts count_parameters(const spec::ModelConfig& config, std::span<const DenseInfo> dense,
                                 bool with_mtp) {
  ParameterCounts counts;
  for (const DenseInfo& info : dense) {
    std::uint64_t elements = 1;
    for (const std::int64_t n : info.shape) elements *= static_cast<std::uint64_t>(n);
    part_of(info.name, counts) += elements;
  }
  const auto layer = static_cast<std::uint64_t>(3 * config.experts * config.hidden * config.expert_inter);
  counts.experts = layer * static_cast<std::uint64_t>(config.layer_count());
  if (with_mtp) counts.mtp += layer;
  return counts;
}

std::uint64_t vision_parameters(const TensorInfo& tensor) {
  if (tensor.name.ends_with(".scales") || tensor.name.ends_with(".biases")) return 0;
  return static_cast<std::uint64_t>(tensor.elements());
}

}  // namespace sluice::store

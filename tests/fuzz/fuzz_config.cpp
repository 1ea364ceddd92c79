// Any text as a config.json: refused, or a config whose derived sizes are all sane.
#include <cstdint>
#include <string_view>

#include "spec/config.h"
#include "spec/formats.h"
#include "spec/ngram_hash.h"

namespace {

void need(bool condition) {
  if (!condition) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto json = sluice::parse_json({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!json) return 0;
  const auto config = sluice::spec::parse_config(*json, "fuzz");
  if (!config) {
    need(!config.error().message.empty());
    return 0;
  }
  const sluice::spec::ModelConfig& c = *config;
  need(c.layer_count() > 0 && c.wide() > 0 && c.q_width() > 0 && c.kv_width() > 0 &&
       c.linear_conv_width() > 0);
  need(c.heads % c.kv_heads == 0 && c.linear_value_heads % c.linear_key_heads == 0);
  need(c.rope.rotary_dims >= 2 && c.rope.rotary_dims <= c.head_dim && c.rope.mrope_section.size() == 3);
  const sluice::spec::RecordLayout layout{{c.hidden, c.expert_inter, 64}, sluice::spec::Format::kF32};
  need(layout.bytes() > 0 && layout.bytes() < INT64_MAX / (c.experts * c.record_layers()));
  if (c.indexer) need(c.indexer->block_budget() > 0 && c.rope.rotary_dims <= c.indexer->head_dim);
  if (c.ple) {
    need(c.ple->head_dim() > 0 && c.ple->window() >= 0 && c.eos_token.has_value());
    const auto hash = sluice::spec::derive_ngram_hash(c, 0);
    if (hash) {
      need(sluice::spec::check_ngram_hash(*hash, *c.ple, hash->rows).ok());
      need(hash->rows < INT64_MAX / (4 * c.ple->head_dim()));
    }
  }
  if (c.quantization) {
    const auto format = c.quantization->format_of("language_model.model.layers.1.mlp");
    need(format.bits >= 0 && format.group >= 0);
  }
  return 0;
}

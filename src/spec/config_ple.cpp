#include <algorithm>
#include <array>
#include <limits>

#include "spec/config_parts.h"

namespace sluice::spec {

void read_indexer(const FieldReader& text, ModelConfig& config) {
  constexpr std::array<std::string_view, 5> kKeys = {
      "indexer_n_heads", "indexer_kv_heads", "indexer_head_dim", "indexer_budget", "indexer_compress_ratio"};
  const auto present = std::count_if(kKeys.begin(), kKeys.end(), [&](auto key) { return text.has(key); });
  if (present == 0) return;
  for (const auto key : kKeys) {
    if (!text.has(key)) {
      return text.fail(key, "nothing",
                       fmt::format("a value, as {} of the five indexer keys have one", present));
    }
  }
  IndexerConfig indexer;
  indexer.heads = text.integer("indexer_n_heads", 1, 1, 256);
  static_cast<void>(text.integer("indexer_kv_heads", 1, 1, 1));
  indexer.head_dim = text.integer("indexer_head_dim", 2, 2, 4096);
  indexer.ratio = text.integer("indexer_compress_ratio", 1, 1, 1 << 16);
  indexer.budget = text.integer("indexer_budget", indexer.ratio, 1, 1 << 24);
  if (indexer.budget % indexer.ratio != 0) {
    text.fail("indexer_budget", std::to_string(indexer.budget),
              fmt::format("a multiple of indexer_compress_ratio ({})", indexer.ratio));
  }
  if (config.rope.rotary_dims > indexer.head_dim) {
    text.fail("indexer_head_dim", std::to_string(indexer.head_dim),
              fmt::format("at least the {} rotary dims", config.rope.rotary_dims));
  }
  config.indexer = indexer;
}

void read_ple(const FieldReader& text, ModelConfig& config) {
  auto ids = text.integers("ple_layer_ids", 1, std::max<std::int64_t>(config.layer_count(), 1), 1024);
  if (!ids || ids->empty()) return;
  PleConfig ple;
  std::sort(ids->begin(), ids->end());
  for (const std::int64_t id : *ids) {
    const std::int64_t layer = id - 1;
    if (!ple.layers.empty() && ple.layers.back() == layer) {
      text.fail("ple_layer_ids", fmt::format("{} twice", id), "every layer once");
    }
    if (layer < config.layer_count() &&
        config.layers[static_cast<std::size_t>(layer)] != LayerKind::kLinear) {
      text.fail("ple_layer_ids", fmt::format("{} (a full-attention layer)", id),
                "one-indexed numbers of linear-attention layers", ErrorCode::kUnsupported);
    }
    ple.layers.push_back(layer);
  }
  ple.embed_dim = text.integer("ple_embed_dim", config.hidden, 1, 1 << 18);
  ple.conv_kernel = text.integer("ple_conv_kernel_size", 4, 1, 64);
  ple.ngram_size = text.integer("ngram_size", 3, 2, 16);
  ple.heads_per_ngram = text.integer("heads_per_ngram", 8, 1, 256);
  // Rows x width x 4 bytes stays below 2^54: heads x base x (embed_dim / heads).
  ple.vocab_base = text.integer("ngram_vocab_size_base", 20000000, 1, std::int64_t{1} << 31);
  ple.vocab_divisor = text.integer("make_ngram_vocab_size_divisible_by", 128, 1, 1 << 30);
  ple.parts = text.integer("split_ngram_parts", 512, 1, 1 << 20);
  ple.seed = text.integer("seed", 1234, std::numeric_limits<std::int64_t>::min(),
                          std::numeric_limits<std::int64_t>::max());
  if (ple.embed_dim % ple.heads() != 0) {
    text.fail("ple_embed_dim", std::to_string(ple.embed_dim),
              fmt::format("a multiple of the {} n-gram heads", ple.heads()));
  }
  if (!config.eos_token) text.fail("eos_token_id", "a token id: the n-gram embedding's boundary");
  config.ple = std::move(ple);
}

}  // namespace sluice::spec

#include <cmath>
#include <numeric>

#include "spec/config_parts.h"

namespace sluice::spec {
namespace {

/// yarn's cos/sin factor from the two mscale values that some configs give instead of attention_factor.
std::optional<double> attention_factor_of(const FieldReader& rope, double factor) {
  if (const auto given = rope.number("attention_factor", 1e-3, 1e3)) return given;
  const double mscale = rope.number("mscale", 0, 0, 1e3);
  const double mscale_all = rope.number("mscale_all_dim", 0, 0, 1e3);
  if (mscale == 0 || mscale_all == 0) return std::nullopt;
  const auto scaled = [factor](double m) { return factor <= 1 ? 1.0 : 0.1 * m * std::log(factor) + 1.0; };
  return scaled(mscale) / scaled(mscale_all);
}

void read_type(const FieldReader& rope, ModelConfig& config) {
  RopeConfig& r = config.rope;
  // Older configs say "type"; "mrope" was the default with sections.
  const std::string key = rope.has("rope_type") ? "rope_type" : "type";
  const std::string type = rope.text(key, "default");
  if (type == "default" || type == "mrope") return;
  if (type != "linear" && type != "yarn") {
    return rope.fail(key, "\"default\", \"linear\" or \"yarn\"", ErrorCode::kUnsupported);
  }
  r.type = type == "yarn" ? RopeType::kYarn : RopeType::kLinear;
  const auto original = rope.integer("original_max_position_embeddings", 1, std::int64_t{1} << 30);
  r.original_max_positions = original.value_or(config.max_positions);
  if (const auto factor = rope.number("factor", 1.0, 1e6)) {
    r.factor = *factor;
  } else if (original && config.max_positions >= *original) {
    r.factor = static_cast<double>(config.max_positions) / static_cast<double>(*original);
  } else {
    rope.fail("factor", "a number from 1 to 1e6");
  }
  if (r.type == RopeType::kLinear) return;
  r.attention_factor = attention_factor_of(rope, r.factor);
  r.beta_fast = rope.number("beta_fast", 32, 1e-3, 1e6);
  r.beta_slow = rope.number("beta_slow", 1, 1e-3, 1e6);
  r.truncate = rope.boolean("truncate", true);
}

}  // namespace

void read_rope(const FieldReader& text, ModelConfig& config) {
  const bool older = !text.has("rope_parameters") && text.has("rope_scaling");
  FieldReader rope = text.object(older ? "rope_scaling" : "rope_parameters");
  // Newer configs may have one object a layer type.
  if (rope.has("full_attention")) rope = rope.object("full_attention");
  RopeConfig& r = config.rope;
  r.theta = rope.number("rope_theta", text.number("rope_theta", 1e7, 1e-3, 1e15), 1e-3, 1e15);
  read_type(rope, config);

  const double factor =
      rope.number("partial_rotary_factor", text.number("partial_rotary_factor", 1.0, 0, 1), 0, 1);
  r.rotary_dims = static_cast<std::int64_t>(static_cast<double>(config.head_dim) * factor);
  if (r.rotary_dims < 2 || r.rotary_dims % 2 != 0) {
    rope.fail("partial_rotary_factor",
              fmt::format("{} of head_dim {} ({} dims)", factor, config.head_dim, r.rotary_dims),
              "an even number of at least 2 rotary dims");
  }

  r.mrope_interleaved = rope.boolean("mrope_interleaved", true);
  const std::int64_t half = r.rotary_dims / 2;
  // Without sections the reference library's [11, 11, 10] of 32, in the same proportion.
  r.mrope_section = {(half + 2) / 3, (half + 1) / 3, half / 3};
  if (const auto section = rope.integers("mrope_section", 0, config.head_dim, 3)) {
    if (section->size() != 3 || std::accumulate(section->begin(), section->end(), std::int64_t{0}) != half) {
      rope.fail("mrope_section", fmt::format("three counts with sum {} (half the rotary dims)", half));
    }
    r.mrope_section = *section;
  }
}

}  // namespace sluice::spec

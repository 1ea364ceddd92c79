#include "spec/config_parts.h"

namespace sluice::spec {
namespace {

AffineFormat read_format(const FieldReader& fields, AffineFormat fallback) {
  if (const std::string mode = fields.text("mode", "affine"); mode != "affine") {
    fields.fail("mode", "\"affine\"", ErrorCode::kUnsupported);
  }
  // Which of these can be served is known only when a tensor uses them.
  return {static_cast<int>(fields.integer("bits", fallback.bits, 1, 16)),
          static_cast<int>(fields.integer("group_size", fallback.group, 1, 1 << 16))};
}

}  // namespace

AffineFormat QuantizationConfig::format_of(std::string_view module) const {
  const AffineFormat* best = &standard;
  std::size_t best_length = 0;
  for (const auto& [name, format] : overrides) {
    const bool matches =
        module.starts_with(name) && (module.size() == name.size() || module[name.size()] == '.');
    if (matches && !name.empty() && name.size() >= best_length) {
      best = &format;
      best_length = name.size();
    }
  }
  return *best;
}

void read_quantization(const FieldReader& root, ModelConfig& config) {
  const std::string key = root.has("quantization") ? "quantization" : "quantization_config";
  const Json* section = root.find(key);
  if (section == nullptr) return;
  const FieldReader fields = root.object(key);
  if (fields.has("quant_method")) {
    config.quant_method = fields.text("quant_method", "");
    if (config.quant_method != "fp8") {
      fields.fail("quant_method", "\"fp8\", or MLX affine quantisation", ErrorCode::kUnsupported);
    }
    return;
  }
  if (!section->is_object()) return;  // already an error
  if (!fields.has("bits") || !fields.has("group_size")) {
    return root.fail(key, "no bits and group_size", "both, or a quant_method", ErrorCode::kUnsupported);
  }
  QuantizationConfig quantization;
  quantization.standard = read_format(fields, {});
  for (const auto& [name, value] : section->items()) {
    if (value.is_object()) {
      quantization.overrides.emplace_back(name, read_format(fields.object(name), quantization.standard));
    } else if (value.is_boolean()) {
      const bool quantised = value.get<bool>();
      quantization.overrides.emplace_back(name, quantised ? quantization.standard : AffineFormat{0, 0});
    }
  }
  config.quantization = std::move(quantization);
}

}  // namespace sluice::spec

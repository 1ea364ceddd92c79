// Models by name: their config.json without a checkpoint, for plans, made models and tests.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "base/json.h"
#include "base/result.h"

namespace sluice::spec {

/// The config.json of a known geometry, as released: nested, without quantization. Names are "flash-next"
/// (also "qwen3.8-flash-next"), "demo" and "tiny", in any case of letters; nullopt for others.
std::optional<Json> named_geometry(std::string_view name);

/// The names, without aliases.
std::span<const std::string_view> geometry_names();

/// What may be changed of a geometry; absent: nothing.
struct GeometryOverrides {
  std::optional<std::int64_t> layers;      // trunk layers
  std::optional<std::int64_t> experts;     // routed experts of each layer
  std::optional<std::int64_t> ngram_base;  // rows of an n-gram head, before the search for primes
};

/// Changes a nested or flat config. With `layers`, every fourth layer is a full-attention layer, as in the
/// released model; n-gram embeddings of layers that are left out or no longer linear are dropped, and if none
/// is left there is one on the last linear layer. Errors name the option where the result is no model.
Result<Json> override_geometry(Json config, const GeometryOverrides& overrides);

}  // namespace sluice::spec

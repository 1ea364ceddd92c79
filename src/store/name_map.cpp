#include "store/name_map.h"

namespace sluice::store {
namespace {

bool take_prefix(std::string_view& name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return false;
  name.remove_prefix(prefix.size());
  return true;
}

bool is_trunk(std::string_view name) {
  return name.starts_with("layers.") || name.starts_with("embed_tokens.") || name == "embed_tokens" ||
         name.starts_with("hyper_connection_mixer.");
}

bool is_head(std::string_view name) {
  return name == "lm_head" || name.starts_with("lm_head.");
}

MappedName canonical(Naming naming, std::string_view name) {
  constexpr std::string_view kWeight = ".weight";
  if (name.ends_with(kWeight)) name.remove_suffix(kWeight.size());
  return {naming, std::string(name)};
}

}  // namespace

MappedName map_name(std::string_view name) {
  for (const std::string_view vision : {"model.visual.", "visual.", "vision_tower.", "model.vision_tower."}) {
    if (name.starts_with(vision)) return {Naming::kVision, {}};
  }
  if (take_prefix(name, "model.language_model.")) {
    return is_trunk(name) ? canonical(Naming::kReleased, name) : MappedName{};
  }
  if (take_prefix(name, "language_model.")) {
    if (is_head(name) || name.starts_with("mtp.")) return canonical(Naming::kMlx, name);
    if (take_prefix(name, "model.") && is_trunk(name)) return canonical(Naming::kMlx, name);
    return {};
  }
  if (is_head(name) || name.starts_with("mtp.")) return canonical(Naming::kShared, name);
  if (take_prefix(name, "model.") && is_trunk(name)) return canonical(Naming::kFlat, name);
  return {};
}

}  // namespace sluice::store

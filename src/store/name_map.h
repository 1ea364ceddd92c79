// Tensor names of the public checkpoint forms, mapped to one canonical form (model.md 2.1, 2.4).
#pragma once

#include <string>
#include <string_view>

namespace sluice::store {

/// Which convention a name follows. kShared names (`mtp.*`, `lm_head`) occur in several.
enum class Naming { kReleased, kMlx, kFlat, kShared, kVision, kUnknown };

struct MappedName {
  Naming naming = Naming::kUnknown;
  /// Released name without `model.language_model.` and without a final `.weight`. Empty for vision tensors
  /// and unknown names.
  std::string canonical;
};

MappedName map_name(std::string_view name);

}  // namespace sluice::store

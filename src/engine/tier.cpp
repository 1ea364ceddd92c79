#include "engine/tier.h"

namespace sluice::engine {

Result<std::size_t> tier_of(const store::SourceForm& source, int bits) {
  return tier_of(source.folder().string(), source.record_layouts(), bits);
}

Result<std::size_t> tier_of(const std::string& what, std::span<const spec::RecordLayout> layouts, int bits) {
  if (bits == 0) return std::size_t{0};
  std::string had;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const int found = spec::bits_of(layouts[i].format);
    if (found == bits) return i;
    had += fmt::format("{}{}", had.empty() ? "" : ", ", found);
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "{}: experts of {} bits asked for, it has {} (sluice pack --experts)", what, bits, had);
}

}  // namespace sluice::engine

#include "engine/tier.h"

#include <string>

namespace sluice::engine {

Result<std::size_t> tier_of(const store::WeightSource& source, int bits) {
  if (bits == 0) return std::size_t{0};
  const auto& layouts = source.record_layouts();
  std::string had;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    const int found = spec::bits_of(layouts[i].format);
    if (found == bits) return i;
    had += fmt::format("{}{}", had.empty() ? "" : ", ", found);
  }
  return make_error(ErrorCode::kInvalidArgument,
                    "{}: experts of {} bits asked for, it has {} (sluice pack --experts)",
                    source.folder().string(), bits, had);
}

}  // namespace sluice::engine

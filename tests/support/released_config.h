// The released model's config (model.md section 1), for tests.
#pragma once

#include "base/json.h"
#include "spec/geometries.h"

namespace sluice::test {

inline Json released_config() {
  return spec::named_geometry("flash-next").value();
}

}  // namespace sluice::test

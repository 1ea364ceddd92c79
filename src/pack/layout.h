// What a store will hold and where: a manifest before any byte is written.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "pack/options.h"
#include "store/manifest.h"
#include "store/source.h"

namespace sluice::pack {

/// The manifest of the store that `source` and `options` make, with all sizes and offsets; checksums are
/// zero. Errors: precisions that the source cannot give, widths that no group divides.
Result<store::Manifest> plan_store(const store::WeightSource& source, const PackOptions& options);

/// Bytes of all its files.
std::uint64_t store_bytes(const store::Manifest& manifest);

}  // namespace sluice::pack

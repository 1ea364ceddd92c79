// Packing: from a source of weights to a store.
#pragma once

#include <cstdint>
#include <filesystem>

#include "base/result.h"
#include "pack/options.h"
#include "store/manifest.h"
#include "store/source.h"

namespace sluice::pack {

struct PackReport {
  std::uint64_t bytes = 0;    // of the store
  std::uint64_t resumed = 0;  // of them, from an interrupted run
  bool was_there = false;     // the very same store existed: nothing was done
  std::size_t threads = 0;
};

/// Writes the store that `source` and `options` make into `target`, which is new, empty or a store. Nothing
/// of it appears before it is complete; an interrupted run is resumed by the next; an error removes what was
/// made (but see keep_on_error). The result does not depend on interruptions or the number of threads.
///
/// Errors: what plan_store refuses; not enough free space (kIo, before anything is written); `target` holds
/// another store and `force` is not set; another process is packing into it; reading or writing fails.
Result<PackReport> pack(const store::WeightSource& source, const std::filesystem::path& target,
                        const PackOptions& options);

}  // namespace sluice::pack

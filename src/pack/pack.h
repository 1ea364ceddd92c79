// Packing: from a source of weights to a store.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

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

/// What pack would do now, for those who have to provide the source's files while it works.
struct Outlook {
  std::uint64_t bytes = 0;   // of the store
  std::uint64_t made = 0;    // bytes of disk that an interrupted run has taken: used, or given back at once
  bool was_there = false;    // the very same store exists: nothing would be done
  std::vector<bool> needed;  // of each of the source's files: something would be read from it
  std::size_t files_at_once = 0;  // of those needed; see pack/tasks.h
};

/// Looks only. Errors: what pack refuses before it reads from the weights, locks and disk space aside.
Result<Outlook> look_ahead(const store::WeightSource& source, const std::filesystem::path& target,
                           const PackOptions& options);

/// Writes the store that `source` and `options` make into `target`, which is new, empty or a store. Nothing
/// of it appears before it is complete; an interrupted run is resumed by the next; an error removes what was
/// made (but see keep_on_error). The result does not depend on interruptions or the number of threads.
///
/// Errors: what plan_store refuses; not enough free space (kIo, before anything is written); `target` holds
/// another store and `force` is not set; another process is packing into it; reading or writing fails.
Result<PackReport> pack(const store::WeightSource& source, const std::filesystem::path& target,
                        const PackOptions& options);

}  // namespace sluice::pack

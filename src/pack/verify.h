// Checking every byte of a packed store.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/result.h"
#include "pack/options.h"

namespace sluice::pack {

struct VerifyReport {
  std::uint64_t bytes = 0;           // checked
  std::uint64_t damaged = 0;         // pieces: tensors, records, blocks
  std::vector<std::string> details;  // of the first of them, at most 100
};

/// Opens the store, which checks its manifest, sizes, the list of record checksums, the copied files and a
/// sample of the n-gram table; then, unless `quick`, compares every tensor, record and n-gram block with its
/// checksum, on `jobs` threads (0: one for each core). An Error when the store does not open at all.
Result<VerifyReport> verify_store(const std::filesystem::path& folder, bool quick, int jobs,
                                  const Progress& progress = {});

}  // namespace sluice::pack

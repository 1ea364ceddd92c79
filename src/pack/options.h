// What a user may choose about a packed store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "spec/formats.h"
#include "store/dense_policy.h"

namespace sluice::pack {

/// How tiers of 3 and 2 bits come about: by dropping bits of the 4-bit codes (operations.md), or fitted to
/// the best values there are.
enum class TierMethod { kTruncate, kRefit };

/// Called with bytes written and in all.
using Progress = std::function<void(std::uint64_t done, std::uint64_t total)>;

struct PackOptions {
  /// Precisions of the routed experts: kQ8, kQ4, kQ3, kQ2. Empty: 4 bits. Codes of a source that is
  /// quantised already are kept as they are.
  std::vector<spec::Format> experts;
  /// Keep the source's own precision of experts and n-gram rows, whatever it is, instead.
  bool keep_experts = false;
  bool keep_ngram = false;
  TierMethod method = TierMethod::kRefit;
  /// Of matrices with real values; quantised ones are kept as they are.
  store::DenseBits dense = store::DenseBits::kQ8;
  /// Statistics of `eval --collect-importance` that weight the errors of experts; empty: none.
  std::filesystem::path importance;

  /// Leave stretches of zeros as holes in the files; their space is not reserved.
  bool sparse = false;

  int jobs = 0;        // threads; 0: one for each core
  bool force = false;  // replace a store that is there

  /// Wait for another process that packs into the same folder, and take what it made if it is of this stamp.
  bool wait = false;
  /// Tells the very files of the source, for stores that are made on first use: kept in the store's folder as
  /// source.stamp. Empty: none.
  std::string stamp;

  std::string source_name;      // empty: the source folder's name
  std::string source_revision;  // of a repository
  Progress on_progress;
  /// Called when nothing more will be read from the source's file number `file`, not by this run nor by one
  /// that resumes it: what was made of it is on the disk and recorded. From any thread.
  std::function<void(std::size_t file)> on_file_done;
  /// Called once when an error is about to end the work, so that reads which wait for something can end too.
  std::function<void()> on_failure;
  /// Asked between pieces of work, from any thread; true ends it with kCancelled.
  std::function<bool()> cancelled;
  /// Keep what is done when an error ends the work, so that it can be resumed.
  bool keep_on_error = false;
};

}  // namespace sluice::pack

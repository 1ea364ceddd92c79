// From a repository on a model hub to a packed store, on the disk space of the store and of a few shards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "base/output_file.h"
#include "base/result.h"
#include "hub/download.h"
#include "hub/endpoint.h"
#include "hub/repository.h"
#include "pack/options.h"
#include "pack/pack.h"
#include "store/source.h"

namespace sluice::pull {

/// What is about to happen, known before any weights are downloaded.
struct PullPlan {
  const hub::Repository& repository;
  const store::WeightSource& source;
  std::uint64_t store_bytes = 0;
  std::uint64_t made_bytes = 0;      // of disk, by an interrupted run
  std::uint64_t download_bytes = 0;  // shards that something is still to be made of
  std::uint64_t on_disk_bytes = 0;   // shards that may lie on disk at once, all if they are kept
  std::size_t shards = 0;
  std::size_t needed = 0;          // of them, to be downloaded
  std::size_t shards_on_disk = 0;  // at once
};

struct PullProgress {
  std::uint64_t downloaded = 0;  // of PullPlan::download_bytes
  std::uint64_t to_download = 0;
  std::uint64_t packed = 0;  // of the store
  std::uint64_t to_pack = 0;
  std::size_t shards_done = 0;  // needed ones that are packed
  std::size_t shards = 0;
};

struct PullOptions {
  /// What the store shall hold. Name and revision of the source, callbacks, and keep_on_error are pull's own.
  pack::PackOptions pack;
  /// Connections and so on. `http.connection.cancelled` ends the whole pull with kCancelled.
  hub::DownloadOptions download;
  /// Shards that may lie on disk at once: 0: three, or more where the tensors are spread so that packing
  /// needs more at once. A number that is too small is an error.
  std::size_t shards_on_disk = 0;
  /// Where the checkpoint is kept; empty: nowhere, each shard is deleted once it is packed.
  std::filesystem::path keep_source;
  /// Called once before weights are downloaded, unless the store is there. An error ends the pull.
  std::function<Result<void>(const PullPlan&)> on_plan;
  /// One call at a time, from any thread.
  std::function<void(const PullProgress&)> on_progress;
  /// Bytes that may be written to the disk of a folder.
  std::function<Result<std::uint64_t>(const std::filesystem::path&)> free_space = sluice::free_space;
};

struct PullReport {
  std::string commit;
  pack::PackReport pack;
  std::uint64_t fetched = 0;  // bytes of shards that came over the network
};

/// Makes the store of `repo` in `target`, packing each shard while later ones arrive. Meanwhile the
/// checkpoint lies in target/.pulling (or `keep_source`), the store in target/.packing; neither is a model to
/// anybody. Stopped or killed at any point, the next pull with the same options goes on from there, and
/// shards that are packed are not downloaded again.
///
/// Errors: of the hub; what open_checkpoint and pack refuse (what can be is refused before anything is
/// written); not enough disk space; another pull into `target` is running; kCancelled.
Result<PullReport> pull(const hub::Endpoint& endpoint, const hub::RepoName& repo,
                        const std::filesystem::path& target, const PullOptions& options);

}  // namespace sluice::pull

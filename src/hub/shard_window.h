// The shards of a release as files, of which only a few lie on disk at a time: what packing while downloading
// reads from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"
#include "base/result.h"
#include "hub/download.h"
#include "hub/repository.h"

namespace sluice::hub {

struct ShardWindowOptions {
  DownloadOptions download;
  /// At most so many shards lie on disk, complete or not, that were not released.
  std::size_t shards_on_disk = 3;
  /// Leave released shards on disk.
  bool keep_source = false;
  /// Paths of shards that are packed already: never downloaded, and removed if an earlier run left them.
  std::set<std::string, std::less<>> packed;
  /// Download nothing before begin(): every read goes to the hub as a request of its own.
  bool hold = false;
  /// The largest safetensors header that is taken into memory.
  std::uint64_t header_limit = 100'000'000;
  /// Reads of at most so many bytes may go to the hub directly.
  std::uint64_t direct_limit = std::uint64_t{1} << 20;
  /// Of the shard being downloaded; called like DownloadOptions::progress.
  std::function<void(const RepoFile& shard, std::uint64_t done, std::uint64_t total)> progress;
};

/// Downloads shards in order in the background and hands them out as files. The folder is the window's own:
/// released shards are deleted from it.
///
/// A read of a file is served
/// * from memory, where it lies within the safetensors header, which is fetched when the file is opened;
/// * from disk, once the shard is complete and its checksum right;
/// * by a request of its own, if it has at most `direct_limit` bytes and the shard is not the next to arrive,
///   is packed already, or lies beyond the window;
/// * otherwise after waiting for the shard.
/// A larger read of a shard beyond the window would wait for ever, since nothing arrives before an earlier
/// shard is released: it is kInvalidArgument, naming both. So is one of a shard that is packed or released.
///
/// begin() changes that: from then on every read beyond the header is one of a complete, verified shard. It
/// waits for it, however small it is and however far the shard; that it does not wait for ever is up to the
/// caller, who must have room in the window for all shards that are read between two releases.
///
/// What was read ahead of a shard (headers, requests of their own) is compared with it once its checksum has
/// been verified; a difference fails the window. Of packed shards, which never arrive, it stays unverified.
///
/// After a failed download reads that have to wait return its error, and so do all later ones; shards on disk
/// can still be read. Files may outlive the window; their reads are then kCancelled where they have to wait.
/// All functions may be called from any thread.
class ShardWindow {
 public:
  /// Starts downloading. `shards` are paths in the repository, in the order in which they are needed.
  static Result<std::unique_ptr<ShardWindow>> start(const Repository& repository,
                                                    const std::vector<std::string>& shards,
                                                    const std::filesystem::path& folder,
                                                    const ShardWindowOptions& options);
  /// Cancels what is being downloaded; it can be resumed.
  ~ShardWindow();
  ShardWindow(const ShardWindow&) = delete;
  ShardWindow& operator=(const ShardWindow&) = delete;

  /// The end of looking around: downloads begin, if they were held back, with these shards packed already and
  /// with this window; reads wait (see above). Call it once.
  Result<void> begin(const std::set<std::string, std::less<>>& packed, std::size_t shards_on_disk);

  /// The shard as a file, its header fetched.
  Result<std::unique_ptr<File>> open(std::string_view shard);

  /// Nothing more will be read of the shard: deletes it and lets the window move on. Also before it has
  /// arrived, which is then not waited for. Again, or of a packed shard: nothing happens.
  Result<void> release(std::string_view shard);

  /// Ends the downloads, which can be resumed, and all reads that wait.
  void stop();

  /// Bytes that shards which are complete took from the network.
  [[nodiscard]] std::uint64_t fetched() const;

  /// The error that ended the downloads, if one did.
  [[nodiscard]] std::optional<Error> failure() const;

 private:
  struct State;
  class WindowFile;
  explicit ShardWindow(std::shared_ptr<State> state);

  std::shared_ptr<State> state_;
};

}  // namespace sluice::hub

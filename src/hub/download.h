// One file of a repository to disk: in ranges, by several connections, resumable at any byte, verified.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

#include "base/result.h"
#include "hub/http_client.h"
#include "hub/repository.h"

namespace sluice::hub {

struct DownloadOptions {
  HttpOptions http;  // its `cancelled` stops the download at once; the part stays and can be resumed
  int workers = 4;   // connections to have open; each has its own client
  std::uint64_t range_bytes = std::uint64_t{16} << 20;
  /// Called with the bytes on disk, one call at a time but from any thread; shall return soon.
  std::function<void(std::uint64_t done, std::uint64_t total)> progress;
};

struct Downloaded {
  std::uint64_t fetched = 0;  // bytes that came over the network
  std::uint64_t resumed = 0;  // bytes that were there from an earlier download
};

/// Downloads `file` to `folder / file.path`. A file of that name with the right checksum is left as it is.
///
/// The bytes go to NAME.part, which gets its final name when the checksum of the whole is right; until then
/// they and the record of them (PartFile) stay where an error leaves them, for the next call. Content whose
/// ETag changes on the way, or whose checksum is wrong, is dropped and got once more as a whole; the second
/// time it is an error and the part is removed.
Result<Downloaded> download_file(const Repository& repository, const RepoFile& file,
                                 const std::filesystem::path& folder, const DownloadOptions& options);

}  // namespace sluice::hub

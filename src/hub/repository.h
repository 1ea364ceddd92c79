// What a repository holds at one commit: names, sizes and checksums.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"
#include "hub/digest.h"
#include "hub/http_client.h"

namespace sluice::hub {

struct RepoFile {
  std::string path;  // relative, checked: stays within its folder
  std::uint64_t size = 0;
  std::string oid;     // SHA-1 of the git blob; of an LFS file that of its pointer
  std::string sha256;  // of an LFS file, else empty

  [[nodiscard]] bool lfs() const { return !sha256.empty(); }
  /// What the content must hash to, and the digest that does it.
  [[nodiscard]] const std::string& checksum() const { return lfs() ? sha256 : oid; }
  [[nodiscard]] Digest digest() const { return lfs() ? Digest::sha256() : Digest::git_blob(size); }
};

/// A name that may be joined to a folder: relative, no "." or "..", no control characters or backslashes.
Result<void> check_path(std::string_view path);

/// Entries of one page of the tree; folders are left out. Unknown fields are ignored.
Result<std::vector<RepoFile>> parse_tree_page(const Json& page, std::string_view what);

/// Names that one folder cannot hold together: equal but for case, a file where another needs a folder, or
/// one that a download of another would use as its temporary name.
Result<void> check_names(const std::vector<RepoFile>& files);

/// The address in `<...>; rel="next"` of a Link header; empty if there is none.
std::string next_link(std::string_view header);

/// The list is read once; later requests name the commit, so that a push meanwhile changes nothing.
class Repository {
 public:
  /// kNotFound where there is no such repository or revision.
  static Result<Repository> open(const Endpoint& endpoint, const RepoName& name, HttpClient& client);

  [[nodiscard]] const Endpoint& endpoint() const { return endpoint_; }
  [[nodiscard]] const RepoName& name() const { return name_; }
  [[nodiscard]] const std::string& commit() const { return commit_; }
  [[nodiscard]] const std::vector<RepoFile>& files() const { return files_; }  // by path
  [[nodiscard]] const RepoFile* find(std::string_view path) const;
  [[nodiscard]] Url file_url(const RepoFile& file) const;

  /// A whole file of at most `limit` bytes, its checksum verified.
  Result<std::string> read_small(HttpClient& client, std::string_view path, std::uint64_t limit) const;

  /// Refuses an answer that is for another commit or, of an LFS file, names another content.
  Result<void> check_answer(const RepoFile& file, const Answer& answer) const;

 private:
  Endpoint endpoint_;
  RepoName name_;
  std::string commit_;
  std::vector<RepoFile> files_;
};

}  // namespace sluice::hub

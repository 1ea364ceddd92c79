// Which hub to talk to, and how its addresses are built.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "hub/url.h"

namespace sluice::hub {

/// The public hub, used unless HF_ENDPOINT or an option names another one.
inline constexpr std::string_view kDefaultEndpoint = "https://huggingface.co";

/// A repository and a revision of it: a branch, a tag or a commit.
struct RepoName {
  std::string owner;
  std::string name;
  std::string revision = "main";

  [[nodiscard]] std::string shown() const { return owner + "/" + name + "@" + revision; }
};

/// Parses "OWNER/NAME[@REV]". Owner and name are letters, digits, '-', '_' and '.', neither starting nor
/// ending with '-' or '.', without ".."; a revision may have slashes between such parts.
Result<RepoName> parse_repo_name(std::string_view text);

/// A hub and the token it wants, if any.
class Endpoint {
 public:
  /// From HF_ENDPOINT and HF_TOKEN; arguments that are given go first. An empty token is none.
  static Result<Endpoint> from_environment(std::optional<std::string> endpoint = std::nullopt,
                                           std::optional<std::string> token = std::nullopt);
  static Result<Endpoint> make(std::string_view endpoint, std::string_view token);

  [[nodiscard]] const Url& base() const { return base_; }
  [[nodiscard]] const std::string& token() const { return token_; }

  [[nodiscard]] Url revision_url(const RepoName& repo) const;
  [[nodiscard]] Url tree_url(const RepoName& repo, std::string_view commit) const;
  [[nodiscard]] Url file_url(const RepoName& repo, std::string_view commit, std::string_view path) const;

 private:
  [[nodiscard]] Url under(const std::string& path) const;

  Url base_;  // target without a slash at its end, or empty
  std::string token_;
};

}  // namespace sluice::hub

#include "hub/endpoint.h"

#include <algorithm>
#include <cstdlib>

namespace sluice::hub {
namespace {

/// One part of a name: no dots or dashes at its ends, so that it is neither "..", nor hidden, nor an option.
bool good_part(std::string_view part, std::size_t limit) {
  if (part.empty() || part.size() > limit || part.find("..") != std::string_view::npos) return false;
  for (const char end : {part.front(), part.back()}) {
    if (end == '.' || end == '-') return false;
  }
  return std::all_of(part.begin(), part.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
           c == '_' || c == '.';
  });
}

bool good_revision(std::string_view revision) {
  if (revision.size() > 250) return false;
  for (;;) {
    const auto slash = revision.find('/');
    if (!good_part(revision.substr(0, slash), 250)) return false;
    if (slash == std::string_view::npos) return true;
    revision.remove_prefix(slash + 1);
  }
}

std::optional<std::string> variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): read once, before threads start
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const auto begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

}  // namespace

Result<RepoName> parse_repo_name(std::string_view text) {
  RepoName repo;
  const auto at = text.find('@');
  const std::string_view path = text.substr(0, at);
  const auto slash = path.find('/');
  if (at != std::string_view::npos) repo.revision = text.substr(at + 1);
  if (slash != std::string_view::npos) {
    repo.owner = path.substr(0, slash);
    repo.name = path.substr(slash + 1);
  }
  if (!good_part(repo.owner, 96) || !good_part(repo.name, 96)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "repository '{}': needed OWNER/NAME or OWNER/NAME@REVISION", printable(text));
  }
  if (!good_revision(repo.revision)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "repository '{}': revision '{}', needed a branch, a tag or a commit", printable(text),
                      printable(repo.revision));
  }
  return repo;
}

Result<Endpoint> Endpoint::from_environment(std::optional<std::string> endpoint,
                                            std::optional<std::string> token) {
  if (!endpoint) endpoint = variable("HF_ENDPOINT").value_or(std::string(kDefaultEndpoint));
  if (!token) token = variable("HF_TOKEN").value_or("");
  return make(*endpoint, *token);
}

Result<Endpoint> Endpoint::make(std::string_view endpoint, std::string_view token) {
  Endpoint made;
  auto base = parse_url(trimmed(endpoint));
  if (!base.ok()) {
    return make_error(base.error().code, "HF_ENDPOINT: {}", base.error().message);
  }
  made.base_ = std::move(base).value();
  if (made.base_.target.find('?') != std::string::npos) {
    return make_error(ErrorCode::kInvalidArgument, "HF_ENDPOINT: address '{}': a query in it",
                      printable(endpoint));
  }
  while (made.base_.target.ends_with('/')) made.base_.target.pop_back();
  made.token_ = trimmed(token);
  // It goes into a header: nothing may end the line. The message does not show it.
  if (!std::all_of(made.token_.begin(), made.token_.end(), [](char c) { return c > 0x20 && c < 0x7f; })) {
    return make_error(ErrorCode::kInvalidArgument, "HF_TOKEN: holds spaces or characters that no token has");
  }
  return made;
}

Url Endpoint::under(const std::string& path) const {
  Url url = base_;
  url.target += path;
  return url;
}

Url Endpoint::revision_url(const RepoName& repo) const {
  return under("/api/models/" + percent_encode(repo.owner, false) + "/" + percent_encode(repo.name, false) +
               "/revision/" + percent_encode(repo.revision, false));
}

Url Endpoint::tree_url(const RepoName& repo, std::string_view commit) const {
  return under("/api/models/" + percent_encode(repo.owner, false) + "/" + percent_encode(repo.name, false) +
               "/tree/" + percent_encode(commit, false) + "?recursive=true");
}

Url Endpoint::file_url(const RepoName& repo, std::string_view commit, std::string_view path) const {
  return under("/" + percent_encode(repo.owner, false) + "/" + percent_encode(repo.name, false) +
               "/resolve/" + percent_encode(commit, false) + "/" + percent_encode(path, true));
}

}  // namespace sluice::hub

#include "hub/repository.h"

#include <algorithm>
#include <map>
#include <set>

namespace sluice::hub {
namespace {

constexpr std::uint64_t kMaxInfo = std::uint64_t{16} << 20;
constexpr std::uint64_t kMaxPage = std::uint64_t{4} << 20;
constexpr std::size_t kMaxPages = 1000;
constexpr std::size_t kMaxFiles = 20000;
constexpr std::uint64_t kMaxFileSize = std::uint64_t{1} << 53;

const Json* member(const Json& object, const char* name) {
  const auto at = object.find(name);
  return at == object.end() ? nullptr : &*at;
}

std::string text_of(const Json& object, const char* name) {
  const Json* value = member(object, name);
  return value != nullptr && value->is_string() ? value->get<std::string>() : std::string();
}

std::optional<std::uint64_t> size_of(const Json& object) {
  const Json* value = member(object, "size");
  if (value == nullptr || !value->is_number_unsigned()) return std::nullopt;
  const auto size = value->get<std::uint64_t>();
  return size <= kMaxFileSize ? std::optional(size) : std::nullopt;
}

Result<RepoFile> parse_entry(const Json& entry, std::string_view what) {
  RepoFile file;
  file.path = text_of(entry, "path");
  SLUICE_TRY(check_path(file.path));
  const auto size = size_of(entry);
  file.oid = text_of(entry, "oid");
  if (!size || !is_hex(file.oid, 40)) {
    return make_error(ErrorCode::kCorrupt, "{}: file '{}' without a size or an object id", what, file.path);
  }
  file.size = *size;
  const Json* lfs = member(entry, "lfs");
  if (lfs != nullptr && !lfs->is_null()) {
    if (!lfs->is_object())
      return make_error(ErrorCode::kCorrupt, "{}: file '{}': lfs is no object", what, file.path);
    file.sha256 = text_of(*lfs, "oid");
    if (!is_hex(file.sha256, 64) || size_of(*lfs) != size) {
      return make_error(ErrorCode::kCorrupt, "{}: file '{}': its SHA-256 or size is missing or contradicts",
                        what, file.path);
    }
  }
  return file;
}

}  // namespace

Result<void> check_path(std::string_view path) {
  const Error bad =
      make_error(ErrorCode::kCorrupt, "file name '{}': not a plain relative path", printable(path));
  if (path.empty() || path.size() > 1024) return bad;
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f || c == '\\') return bad;
  }
  for (;;) {
    const auto slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    if (part.empty() || part == "." || part == ".." || part.size() > 240) return bad;
    if (slash == std::string_view::npos) return {};
    path.remove_prefix(slash + 1);
  }
}

Result<std::vector<RepoFile>> parse_tree_page(const Json& page, std::string_view what) {
  if (!page.is_array()) return make_error(ErrorCode::kCorrupt, "{}: the file list is not an array", what);
  std::vector<RepoFile> files;
  for (const Json& entry : page) {
    if (!entry.is_object()) return make_error(ErrorCode::kCorrupt, "{}: an entry that is no object", what);
    if (text_of(entry, "type") != "file") continue;
    SLUICE_ASSIGN(RepoFile file, parse_entry(entry, what));
    files.push_back(std::move(file));
  }
  return files;
}

Result<void> check_names(const std::vector<RepoFile>& files) {
  std::map<std::string, const RepoFile*> names;  // in lower case, with what makes each necessary
  for (const RepoFile& file : files) {
    for (const char* ending : {"", ".part", ".part.ranges"}) {
      const auto [at, fresh] = names.emplace(lower_case(file.path + ending), &file);
      if (!fresh) {
        return make_error(ErrorCode::kCorrupt, "files '{}' and '{}' cannot both be kept in one folder",
                          at->second->path, file.path);
      }
    }
  }
  std::map<std::string, std::string> folders;  // lower case to the case first seen
  for (const RepoFile& file : files) {
    for (auto slash = file.path.find('/'); slash != std::string::npos;
         slash = file.path.find('/', slash + 1)) {
      const std::string folder = file.path.substr(0, slash);
      const std::string lower = lower_case(folder);
      if (const auto at = names.find(lower); at != names.end()) {
        return make_error(ErrorCode::kCorrupt, "files '{}' and '{}' cannot both be kept in one folder",
                          at->second->path, file.path);
      }
      if (const auto [at, fresh] = folders.emplace(lower, folder); !fresh && at->second != folder) {
        return make_error(ErrorCode::kCorrupt, "folders '{}' and '{}' differ in case alone", at->second,
                          folder);
      }
    }
  }
  return {};
}

std::string next_link(std::string_view header) {
  while (!header.empty()) {
    const auto open = header.find('<');
    const auto close = header.find('>', open == std::string_view::npos ? 0 : open);
    if (open == std::string_view::npos || close == std::string_view::npos) return {};
    const std::string_view target = header.substr(open + 1, close - open - 1);
    header.remove_prefix(close + 1);
    const std::string_view parameters = header.substr(0, header.find(",", 0));
    if (parameters.find("rel=\"next\"") != std::string_view::npos ||
        parameters.find("rel=next") != std::string_view::npos) {
      return std::string(target);
    }
    header.remove_prefix(parameters.size());
  }
  return {};
}

Result<Repository> Repository::open(const Endpoint& endpoint, const RepoName& name, HttpClient& client) {
  Repository repository;
  repository.endpoint_ = endpoint;
  repository.name_ = name;
  const auto info = client.get_text(endpoint.revision_url(name), kMaxInfo);
  if (!info.ok()) {
    if (info.error().code != ErrorCode::kNotFound) return info.error();
    return make_error(ErrorCode::kNotFound, "{}: no such repository or revision ({})", name.shown(),
                      info.error().message);
  }
  const std::string what = name.shown();
  SLUICE_ASSIGN(const Json json, parse_json(info->body, what));
  if (json.is_object()) repository.commit_ = text_of(json, "sha");
  if (!is_hex(repository.commit_, 40) && !is_hex(repository.commit_, 64)) {
    return make_error(ErrorCode::kCorrupt, "{}: its commit is '{}', needed 40 hex digits", what,
                      printable(repository.commit_, 80));
  }
  Url url = endpoint.tree_url(name, repository.commit_);
  std::set<std::string> seen;
  for (std::size_t page = 0;; ++page) {
    if (page == kMaxPages || !seen.insert(url.target).second) {
      return make_error(ErrorCode::kLimit, "{}: its file list does not end ({} pages read)", what, page);
    }
    SLUICE_ASSIGN(const HttpClient::Text text, client.get_text(url, kMaxPage));
    SLUICE_ASSIGN(const Json list, parse_json(text.body, what));
    SLUICE_ASSIGN(std::vector<RepoFile> files, parse_tree_page(list, what));
    repository.files_.insert(repository.files_.end(), std::make_move_iterator(files.begin()),
                             std::make_move_iterator(files.end()));
    if (repository.files_.size() > kMaxFiles) {
      return make_error(ErrorCode::kLimit, "{}: more than {} files", what, kMaxFiles);
    }
    const auto link = text.answer.headers.find("link");
    const std::string next = link == text.answer.headers.end() ? std::string() : next_link(link->second);
    if (next.empty()) break;
    SLUICE_ASSIGN(Url next_url, resolve_url(url, next));
    if (next_url.origin() != endpoint.base().origin()) {
      return make_error(ErrorCode::kCorrupt, "{}: its file list continues at another host, {}", what,
                        next_url.shown());
    }
    url = std::move(next_url);
  }
  SLUICE_TRY(check_names(repository.files_));
  std::sort(repository.files_.begin(), repository.files_.end(),
            [](const RepoFile& a, const RepoFile& b) { return a.path < b.path; });
  return repository;
}

const RepoFile* Repository::find(std::string_view path) const {
  const auto at =
      std::lower_bound(files_.begin(), files_.end(), path,
                       [](const RepoFile& file, std::string_view key) { return file.path < key; });
  return at != files_.end() && at->path == path ? &*at : nullptr;
}

Url Repository::file_url(const RepoFile& file) const {
  return endpoint_.file_url(name_, commit_, file.path);
}

Result<void> Repository::check_answer(const RepoFile& file, const Answer& answer) const {
  if (!answer.commit.empty() && answer.commit != commit_) {
    return make_error(ErrorCode::kCorrupt, "{}: the hub answers for commit {}, asked for {}", file.path,
                      answer.commit, commit_);
  }
  if (file.lfs() && answer.linked && is_hex(answer.etag, 64) && answer.etag != file.sha256) {
    return make_error(ErrorCode::kCorrupt, "{}: the hub now has content {}, listed was {}", file.path,
                      answer.etag, file.sha256);
  }
  if (answer.total && *answer.total != file.size) {
    return make_error(ErrorCode::kCorrupt, "{}: {} bytes now, {} when it was listed", file.path,
                      *answer.total, file.size);
  }
  return {};
}

Result<std::string> Repository::read_small(HttpClient& client, std::string_view path,
                                           std::uint64_t limit) const {
  const RepoFile* file = find(path);
  if (file == nullptr) {
    return make_error(ErrorCode::kNotFound, "{}: has no file '{}'", name_.shown(), printable(path));
  }
  if (file->size > limit) {
    return make_error(ErrorCode::kLimit, "{}: {} bytes, at most {} are read", file->path, file->size, limit);
  }
  for (int attempt = 0;; ++attempt) {
    SLUICE_ASSIGN(HttpClient::Text text, client.get_text(file_url(*file), file->size));
    SLUICE_TRY(check_answer(*file, text.answer));
    Digest digest = file->digest();
    digest.add(std::as_bytes(std::span(text.body)));
    const std::string found = digest.hex();
    if (text.body.size() == file->size && found == file->checksum()) return std::move(text.body);
    if (attempt == 1) {
      return make_error(ErrorCode::kCorrupt, "{}: {} bytes with checksum {}, needed {} bytes with {}",
                        file->path, text.body.size(), found, file->size, file->checksum());
    }
  }
}

}  // namespace sluice::hub

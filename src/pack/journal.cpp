#include "pack/journal.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

#include "base/checksum.h"
#include "base/file.h"
#include "base/output_file.h"

namespace sluice::pack {
namespace {

constexpr std::uint64_t kMostJournal = std::uint64_t{1} << 30;

std::uint64_t line_sum(std::string_view body) {
  return checksum(std::as_bytes(std::span(body)));
}

std::string sealed(const std::string& body) {
  return fmt::format("{} {}\n", body, checksum_text(line_sum(body)));
}

/// The line without its checksum, if that is right.
std::optional<std::string_view> unsealed(std::string_view line) {
  constexpr std::size_t kSum = 16;
  if (line.size() < kSum + 2 || line[line.size() - kSum - 1] != ' ') return std::nullopt;
  const std::string_view body = line.substr(0, line.size() - kSum - 1);
  const auto sum = parse_checksum(line.substr(line.size() - kSum));
  if (!sum || *sum != line_sum(body)) return std::nullopt;
  return body;
}

std::string head_of(std::uint64_t identity) {
  return sealed(fmt::format("pack {}", checksum_text(identity)));
}

std::string_view next_word(std::string_view& text) {
  const std::size_t end = std::min(text.find(' '), text.size());
  const std::string_view word = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return word;
}

}  // namespace

Journal::Journal(Journal&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      resumed_(other.resumed_),
      committing_(other.committing_),
      done_(std::move(other.done_)) {}

Journal& Journal::operator=(Journal&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(resumed_, other.resumed_);
  std::swap(committing_, other.committing_);
  std::swap(done_, other.done_);
  return *this;
}

Journal::~Journal() {
  if (fd_ >= 0) ::close(fd_);
}

Journal Journal::look(const std::filesystem::path& path, std::uint64_t identity) {
  Journal journal(path, -1);
  if (const auto text = read_text_file(path, kMostJournal); text.ok()) {
    journal.take_all(text.value(), head_of(identity));
  }
  return journal;
}

Result<Journal> Journal::open(const std::filesystem::path& path, std::uint64_t identity) {
  const std::string head = head_of(identity);
  std::string text;
  if (auto read = read_text_file(path, kMostJournal); read.ok()) text = std::move(read).value();
  const bool same = text.starts_with(head);
  if (!same) SLUICE_TRY(write_text_file(path, head));
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return make_error(ErrorCode::kIo, "{}: {}", path.string(), std::strerror(errno));
  Journal journal(path, fd);
  const std::size_t valid = same ? journal.take_all(text, head) : head.size();
  if (::ftruncate(fd, static_cast<off_t>(valid)) != 0 || ::lseek(fd, 0, SEEK_END) < 0) {
    return make_error(ErrorCode::kIo, "{}: {}", path.string(), std::strerror(errno));
  }
  return journal;
}

/// Reads a journal that starts with `head`; returns how many of its bytes are believed. The first line that
/// is not whole ends them, and is overwritten by the next one added.
std::size_t Journal::take_all(std::string_view text, std::string_view head) {
  if (!text.starts_with(head)) return 0;
  resumed_ = true;
  std::size_t valid = head.size();
  for (std::size_t end = text.find('\n', valid); end != std::string_view::npos;
       end = text.find('\n', valid)) {
    const auto body = unsealed(text.substr(valid, end - valid));
    if (!body || !take(*body)) break;
    valid = end + 1;
  }
  return valid;
}

bool Journal::take(std::string_view line) {
  const std::string_view kind = next_word(line);
  if (kind == "commit") {
    committing_ = true;
    return true;
  }
  if (kind != "d" && kind != "r" && kind != "n") return false;
  const std::string_view number = next_word(line);
  std::int64_t index = 0;
  const auto [end, ec] = std::from_chars(number.data(), number.data() + number.size(), index);
  if (ec != std::errc{} || end != number.data() + number.size()) return false;
  TaskSums sums;
  while (!line.empty()) {
    const auto sum = parse_checksum(next_word(line));
    if (!sum) return false;
    sums.push_back(*sum);
  }
  done_[{static_cast<TaskKind>(kind.front()), index}] = std::move(sums);
  return true;
}

const TaskSums* Journal::find(TaskKind kind, std::int64_t index) const {
  const auto it = done_.find({kind, index});
  return it == done_.end() ? nullptr : &it->second;
}

Result<void> Journal::add(const std::vector<Entry>& entries) {
  std::string lines;
  for (const Entry& entry : entries) {
    std::string body = fmt::format("{} {}", static_cast<char>(entry.kind), entry.index);
    for (const std::uint64_t sum : entry.sums) body += " " + checksum_text(sum);
    lines += sealed(body);
  }
  SLUICE_TRY(append(lines));
  for (const Entry& entry : entries) done_[{entry.kind, entry.index}] = entry.sums;
  return {};
}

Result<void> Journal::add_commit() {
  SLUICE_TRY(append(sealed("commit")));
  committing_ = true;
  return {};
}

Result<void> Journal::append(const std::string& lines) {
  std::size_t done = 0;
  while (done < lines.size()) {
    const ssize_t got = ::write(fd_, lines.data() + done, lines.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return make_error(ErrorCode::kIo, "{}: writing: {}", path_.string(), std::strerror(errno));
    done += static_cast<std::size_t>(got);
  }
  if (::fsync(fd_) != 0) {
    return make_error(ErrorCode::kIo, "{}: syncing: {}", path_.string(), std::strerror(errno));
  }
  return {};
}

}  // namespace sluice::pack

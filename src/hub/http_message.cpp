#include "hub/http_message.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "hub/url.h"

namespace sluice::hub {
namespace {

constexpr std::size_t kMaxHead = 65536;
constexpr std::size_t kMaxHeaders = 200;
constexpr int kMaxInterim = 10;
constexpr std::size_t kMaxChunkLine = 1024;
constexpr std::size_t kMaxTrailers = 16384;

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool is_token(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
    return c > 0x20 && c < 0x7f && std::string_view("()<>@,;:\\\"/[]?={}").find(c) == std::string_view::npos;
  });
}

bool has_control(std::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7f; });
}

Error not_http(std::string_view why, std::string_view found) {
  return make_error(ErrorCode::kCorrupt, "the answer is not HTTP: {} '{}'", why, printable(found, 80));
}

/// "HTTP/1.1 200 OK": the version's minor digit and the status.
Result<int> parse_status_line(std::string_view line, MessageHead& head) {
  if (!line.starts_with("HTTP/1.") || line.size() < 12 || line[8] != ' ' ||
      (line.size() > 12 && line[12] != ' ')) {
    return not_http("status line", line);
  }
  const char minor = line[7];
  const auto [end, status] = std::from_chars(line.data() + 9, line.data() + 12, head.status);
  if ((minor != '0' && minor != '1') || status != std::errc{} || end != line.data() + 12 ||
      head.status < 100) {
    return not_http("status line", line);
  }
  return minor - '0';
}

}  // namespace

std::optional<std::uint64_t> parse_decimal(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || status != std::errc{} || end != text.data() + text.size() || value > INT64_MAX) {
    return std::nullopt;
  }
  return value;
}

std::optional<ContentRange> parse_content_range(std::string_view text) {
  if (lower_case(text.substr(0, 6)) != "bytes ") return std::nullopt;
  text = trimmed(text.substr(6));
  const auto dash = text.find('-');
  const auto slash = text.find('/');
  if (dash == std::string_view::npos || slash == std::string_view::npos || slash < dash) return std::nullopt;
  const auto first = parse_decimal(text.substr(0, dash));
  const auto last = parse_decimal(text.substr(dash + 1, slash - dash - 1));
  const std::string_view total = text.substr(slash + 1);
  ContentRange range;
  if (total != "*") {
    range.total = parse_decimal(total);
    if (!range.total) return std::nullopt;
  }
  if (!first || !last || *first > *last || (range.total && *last >= *range.total)) return std::nullopt;
  range.first = *first;
  range.last = *last;
  return range;
}

Result<MessageHead> parse_head(std::string_view text) {
  MessageHead head;
  auto cut = [&text] {
    const auto newline = text.find('\n');
    std::string_view line = text.substr(0, newline);
    text.remove_prefix(newline == std::string_view::npos ? text.size() : newline + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    return line;
  };
  SLUICE_ASSIGN(const int minor, parse_status_line(cut(), head));
  std::size_t count = 0;
  while (!text.empty()) {
    const std::string_view line = cut();
    if (++count > kMaxHeaders) {
      return make_error(ErrorCode::kLimit, "the answer has more than {} headers", kMaxHeaders);
    }
    const auto colon = line.find(':');
    if (colon == std::string_view::npos || !is_token(line.substr(0, colon)) || has_control(line)) {
      return not_http("header", line);
    }
    const std::string name = lower_case(line.substr(0, colon));
    const std::string_view value = trimmed(line.substr(colon + 1));
    const auto [at, fresh] = head.headers.emplace(name, value);
    // Two lengths, or two ranges, leave open where the answer ends.
    if (!fresh && at->second != value &&
        (name == "content-length" || name == "transfer-encoding" || name == "content-range" ||
         name == "location")) {
      return make_error(ErrorCode::kCorrupt, "the answer has two headers {}: '{}' and '{}'", name,
                        printable(at->second, 80), printable(value, 80));
    }
  }
  const std::string connection = lower_case(head.header("connection"));
  head.keep_alive = minor == 0 ? connection == "keep-alive" : connection.find("close") == std::string::npos;
  if (const auto encoding = head.header("transfer-encoding"); !encoding.empty()) {
    if (lower_case(encoding) != "chunked") {
      return make_error(ErrorCode::kUnsupported,
                        "the answer's transfer encoding is '{}', needed chunked or none",
                        printable(encoding, 80));
    }
    head.chunked = true;
  } else if (const auto at = head.headers.find("content-length"); at != head.headers.end()) {
    head.length = parse_decimal(at->second);
    if (!head.length) return not_http("Content-Length", at->second);
  }
  return head;
}

MessageReader::MessageReader(Connection& connection) : connection_(&connection), buffer_(kMaxHead) {}

Result<bool> MessageReader::fill(Deadline deadline) {
  if (begin_ == end_) begin_ = end_ = 0;
  if (end_ == buffer_.size() && begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  SLUICE_ASSIGN(const std::size_t got, connection_->read(std::span(buffer_).subspan(end_), deadline));
  end_ += got;
  any_byte_ = any_byte_ || got > 0;
  return got > 0;
}

Result<MessageHead> MessageReader::head(Deadline deadline) {
  any_byte_ = begin_ < end_;
  ended_ = false;
  std::size_t used = 0;
  for (int interim = 0; interim <= kMaxInterim; ++interim) {
    std::string text;
    for (;;) {
      SLUICE_ASSIGN(std::string next, line(deadline, kMaxHead - used, "head"));
      used += next.size() + 1;
      if (next.empty() || next == "\r") break;
      if (text.empty() && !next.starts_with("HTTP/")) return not_http("it starts with", next);
      text += next + "\n";
    }
    SLUICE_ASSIGN(MessageHead head, parse_head(text));
    if (head.status < 200) continue;
    keep_alive_ = head.keep_alive;
    in_chunk_ = false;
    left_ = head.length.value_or(0);
    framing_ = head.chunked ? Framing::kChunked : head.length ? Framing::kLength : Framing::kUntilClose;
    if (head.status == 204 || head.status == 304) {
      framing_ = Framing::kLength;
      left_ = 0;
    }
    if (framing_ == Framing::kUntilClose) keep_alive_ = false;
    ended_ = framing_ == Framing::kLength && left_ == 0;
    return head;
  }
  return make_error(ErrorCode::kLimit, "more than {} interim answers", kMaxInterim);
}

Result<std::string> MessageReader::line(Deadline deadline, std::size_t limit, std::string_view what) {
  std::size_t seen = 0;
  for (;;) {
    const std::span<const std::byte> unread = std::span(buffer_).subspan(begin_, end_ - begin_);
    const auto newline =
        std::find(unread.begin() + static_cast<std::ptrdiff_t>(seen), unread.end(), std::byte{'\n'});
    const auto size = static_cast<std::size_t>(newline - unread.begin());
    if (size >= limit) {
      return make_error(ErrorCode::kLimit, "the answer's {} is longer than {} bytes", what, limit);
    }
    if (newline != unread.end()) {
      std::string text(size, '\0');
      std::memcpy(text.data(), unread.data(), size);
      begin_ += size + 1;
      return text;
    }
    seen = unread.size();
    if (seen == buffer_.size()) {
      return make_error(ErrorCode::kLimit, "the answer's {} is longer than {} bytes", what, seen);
    }
    SLUICE_ASSIGN(const bool more, fill(deadline));
    if (!more) return make_error(ErrorCode::kIo, "connection dropped within the answer's {}", what);
  }
}

Result<void> MessageReader::next_chunk(Deadline deadline) {
  if (in_chunk_) {
    SLUICE_ASSIGN(const std::string end, line(deadline, kMaxChunkLine, "chunk"));
    if (end != "\r" && !end.empty()) return not_http("end of a chunk", end);
  }
  SLUICE_ASSIGN(std::string size, line(deadline, kMaxChunkLine, "chunk line"));
  if (size.ends_with('\r')) size.pop_back();
  const std::string_view digits = trimmed(std::string_view(size).substr(0, size.find(';')));
  const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), left_, 16);
  if (digits.empty() || status != std::errc{} || end != digits.data() + digits.size() || left_ > INT64_MAX) {
    return not_http("chunk size", size);
  }
  in_chunk_ = true;
  if (left_ > 0) return {};
  for (std::size_t used = 0;;) {  // trailers, of which nothing is needed
    SLUICE_ASSIGN(const std::string trailer,
                  line(deadline, kMaxTrailers - std::min(used, kMaxTrailers), "trailer"));
    used += trailer.size() + 1;
    if (trailer.empty() || trailer == "\r") break;
  }
  ended_ = true;
  return {};
}

Result<std::size_t> MessageReader::body(std::span<std::byte> to, Deadline deadline) {
  if (framing_ == Framing::kChunked && left_ == 0 && !ended_) SLUICE_TRY(next_chunk(deadline));
  if (ended_ || to.empty()) return std::size_t{0};
  if (framing_ != Framing::kUntilClose && to.size() > left_) to = to.first(static_cast<std::size_t>(left_));
  std::size_t got = std::min(to.size(), end_ - begin_);
  if (got > 0) {
    std::memcpy(to.data(), buffer_.data() + begin_, got);
    begin_ += got;
  } else {
    SLUICE_ASSIGN(got, connection_->read(to, deadline));
  }
  if (framing_ == Framing::kUntilClose) {
    ended_ = got == 0;
    return got;
  }
  if (got == 0) {
    return make_error(ErrorCode::kIo, "connection dropped, {} bytes of the body missing", left_);
  }
  left_ -= got;
  if (framing_ == Framing::kLength) ended_ = left_ == 0;
  return got;
}

}  // namespace sluice::hub

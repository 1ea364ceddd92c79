#include "hub/http_client.h"

#include <algorithm>
#include <cstring>
#include <ctime>

namespace sluice::hub {
namespace {

using Steady = std::chrono::steady_clock;

constexpr int kMaxRedirects = 10;
constexpr std::size_t kMaxChannels = 3;
constexpr std::size_t kBodyBuffer = 65536;
constexpr std::uint64_t kMinimumAReadTimeout = 65536;
/// So much of a file is read and thrown away where a server ignores a range.
constexpr std::uint64_t kMostSkipped = std::uint64_t{64} << 20;

bool is_redirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

std::string plain_etag(std::string_view etag) {
  if (etag.starts_with("W/")) etag.remove_prefix(2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') etag = etag.substr(1, etag.size() - 2);
  return printable(etag, 256);
}

/// Collects a whole body; every attempt starts anew.
class TextSink final : public BodySink {
 public:
  TextSink(const Url& url, std::uint64_t limit) : url_(url), limit_(limit) {}
  std::optional<ByteRange> range() override { return std::nullopt; }
  Result<void> begin(const Answer& answer) override {
    text_.body.clear();
    text_.answer = answer;
    if (answer.count && *answer.count > limit_) return too_long(*answer.count);
    return {};
  }
  Result<bool> bytes(std::span<const std::byte> bytes) override {
    if (bytes.size() > limit_ - text_.body.size()) return too_long(text_.body.size() + bytes.size());
    text_.body.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return true;
  }
  [[nodiscard]] std::uint64_t progress() const override { return 0; }
  HttpClient::Text take() { return std::move(text_); }

 private:
  [[nodiscard]] Error too_long(std::uint64_t size) const {
    return make_error(ErrorCode::kLimit, "{}: {} bytes or more, at most {} are read", url_.shown(), size,
                      limit_);
  }
  const Url& url_;
  std::uint64_t limit_;
  HttpClient::Text text_;
};

/// Fills memory with a part of a file, also from a server that ignores ranges if the part is near the start.
class RangeSink final : public BodySink {
 public:
  RangeSink(const Url& url, std::uint64_t first, std::span<std::byte> to, std::uint64_t total)
      : url_(url), first_(first), to_(to), total_(total) {}
  std::optional<ByteRange> range() override { return ByteRange{first_ + done_, first_ + to_.size() - 1}; }
  Result<void> begin(const Answer& answer) override {
    if (answer.total && *answer.total != total_) {
      return make_error(ErrorCode::kCorrupt, "{}: {} bytes now, {} when it was listed", url_.shown(),
                        *answer.total, total_);
    }
    if (answer_ && answer_->etag != answer.etag) {
      return make_error(ErrorCode::kCorrupt, "{}: changed while it was read", url_.shown());
    }
    answer_ = answer;
    at_ = answer.first;
    if (!answer.partial && first_ + to_.size() > kMostSkipped) {
      return make_error(ErrorCode::kUnsupported, "{}: the server ignores ranges", url_.shown());
    }
    return {};
  }
  Result<bool> bytes(std::span<const std::byte> bytes) override {
    const std::uint64_t wanted = first_ + done_;
    const std::uint64_t skip = std::min<std::uint64_t>(wanted > at_ ? wanted - at_ : 0, bytes.size());
    at_ += bytes.size();
    bytes = bytes.subspan(static_cast<std::size_t>(skip));
    const std::size_t take = std::min(bytes.size(), to_.size() - done_);
    if (take > 0) std::memcpy(to_.data() + done_, bytes.data(), take);
    done_ += take;
    return done_ < to_.size();
  }
  [[nodiscard]] std::uint64_t progress() const override { return done_; }
  [[nodiscard]] bool full() const { return done_ == to_.size(); }
  [[nodiscard]] Answer answer() const { return answer_.value_or(Answer{}); }

 private:
  const Url& url_;
  std::uint64_t first_;
  std::span<std::byte> to_;
  std::uint64_t total_;
  std::uint64_t at_ = 0;
  std::size_t done_ = 0;
  std::optional<Answer> answer_;
};

Error named(const Url& url, const Error& error) {
  return {error.code, url.shown() + ": " + error.message};
}

}  // namespace

std::optional<std::int64_t> parse_retry_after(std::string_view text, std::int64_t now) {
  if (const auto seconds = parse_decimal(text)) return static_cast<std::int64_t>(*seconds);
  std::tm date{};
  const std::string copy(text.substr(0, 64));
  const char* end = ::strptime(copy.c_str(), "%a, %d %b %Y %H:%M:%S GMT", &date);
  if (end == nullptr || *end != '\0') return std::nullopt;
  return std::max<std::int64_t>(0, ::timegm(&date) - now);
}

/// A kept connection and the reader that knows where its answers end.
struct HttpClient::Channel {
  std::string origin;
  std::unique_ptr<Connection> connection;
  MessageReader reader;
  bool used = false;

  Channel(std::string to, std::unique_ptr<Connection> opened)
      : origin(std::move(to)), connection(std::move(opened)), reader(*connection) {}
};

/// How one attempt ended.
struct HttpClient::Attempt {
  std::optional<Error> error;  // none: done
  bool retriable = false;
  bool stale = false;  // a kept connection or a remembered redirect had run out: try again at once
  std::optional<std::int64_t> retry_after;

  static Attempt done() { return {}; }
  static Attempt failed(Error error) { return {.error = std::move(error)}; }
  /// Of the network: kIo may be cured by another attempt.
  static Attempt network(const Url& url, const Error& error) {
    return {.error = named(url, error), .retriable = error.code == ErrorCode::kIo};
  }
};

HttpClient::HttpClient(const Endpoint& endpoint, HttpOptions options)
    : endpoint_(endpoint), options_(std::move(options)) {}
HttpClient::~HttpClient() = default;
HttpClient::HttpClient(HttpClient&&) noexcept = default;
HttpClient& HttpClient::operator=(HttpClient&&) noexcept = default;

std::string HttpClient::request_text(const Url& url, const std::optional<ByteRange>& range) const {
  std::string text = fmt::format(
      "GET {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: sluice\r\nAccept: */*\r\nAccept-Encoding: identity\r\n",
      url.target, url.host_header());
  if (range) text += fmt::format("Range: bytes={}-{}\r\n", range->first, range->last);
  if (!endpoint_.token().empty() && url.origin() == endpoint_.base().origin()) {
    text += fmt::format("Authorization: Bearer {}\r\n", endpoint_.token());
  }
  return text + "\r\n";
}

Result<HttpClient::Channel*> HttpClient::channel_to(const Url& url) {
  const std::string origin = url.origin();
  for (std::size_t i = 0; i < channels_.size(); ++i) {
    if (channels_[i]->origin != origin) continue;
    std::rotate(channels_.begin(), channels_.begin() + static_cast<std::ptrdiff_t>(i),
                channels_.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    return channels_.front().get();
  }
  SLUICE_ASSIGN(auto connection, Connection::open(url, options_.connection));
  if (channels_.size() == kMaxChannels) channels_.pop_back();
  channels_.insert(channels_.begin(), std::make_unique<Channel>(origin, std::move(connection)));
  return channels_.front().get();
}

void HttpClient::drop(const Channel* channel) {
  std::erase_if(channels_, [channel](const auto& kept) { return kept.get() == channel; });
}

HttpClient::Attempt HttpClient::refused(const Url& url, const MessageHead& head) {
  std::string said;
  if (const auto message = head.header("x-error-message"); !message.empty()) said = ": " + printable(message);
  Attempt attempt;
  if (head.status == 404) {
    attempt.error = make_error(ErrorCode::kNotFound, "{}: not found (404){}", url.shown(), said);
  } else if (head.status == 401 || head.status == 403) {
    attempt.error = make_error(
        ErrorCode::kInvalidArgument,
        "{}: access refused ({}){}; it does not exist, or needs HF_TOKEN set to a token that may read it{}",
        url.shown(), head.status, said, endpoint_.token().empty() ? " (none is set)" : "");
  } else if (head.status == 416) {
    attempt.error = make_error(ErrorCode::kCorrupt, "{}: shorter than listed (416)", url.shown());
  } else {
    attempt.error = make_error(ErrorCode::kIo, "{}: status {}{}", url.shown(), head.status, said);
    attempt.retriable = head.status == 408 || head.status == 429 || head.status >= 500;
    attempt.retry_after = parse_retry_after(head.header("retry-after"), options_.clock->now());
  }
  return attempt;
}

HttpClient::Attempt HttpClient::receive(Channel& channel, const Url& url, const MessageHead& head,
                                        const std::optional<ByteRange>& range, Answer answer,
                                        BodySink& sink) {
  if (const auto encoding = head.header("content-encoding");
      !encoding.empty() && lower_case(encoding) != "identity") {
    return Attempt::failed(make_error(ErrorCode::kUnsupported,
                                      "{}: content encoding '{}', none was asked for", url.shown(),
                                      printable(encoding, 80)));
  }
  answer.count = head.length;
  answer.total = head.length;
  if (head.status == 206) {
    const auto got = parse_content_range(head.header("content-range"));
    if (!range || !got || got->first != range->first || got->last > range->last ||
        (head.length && *head.length != got->last - got->first + 1)) {
      return Attempt::failed(make_error(
          ErrorCode::kCorrupt, "{}: asked for bytes {}-{}, answered Content-Range '{}' with {} bytes",
          url.shown(), range ? range->first : 0, range ? range->last : 0,
          printable(head.header("content-range"), 80),
          head.length ? std::to_string(*head.length) : "any number of"));
    }
    answer.partial = true;
    answer.first = got->first;
    answer.count = got->last - got->first + 1;
    answer.total = got->total;
  }
  answer.headers = head.headers;
  if (auto begun = sink.begin(answer); !begun.ok()) return Attempt::failed(begun.error());

  std::vector<std::byte> buffer(kBodyBuffer);
  std::uint64_t done = 0;
  // A server that sends a byte now and then is as stalled as one that sends nothing.
  Deadline deadline = Steady::now() + options_.read_timeout;
  std::uint64_t in_window = 0;
  for (;;) {
    const auto got = channel.reader.body(buffer, deadline);
    if (!got.ok()) return Attempt::network(url, got.error());
    if (*got == 0) break;
    done += *got;
    in_window += *got;
    if (answer.count && done > *answer.count) {
      return Attempt::failed(make_error(ErrorCode::kCorrupt, "{}: more than the {} bytes announced",
                                        url.shown(), *answer.count));
    }
    if (in_window >= kMinimumAReadTimeout) {
      deadline = Steady::now() + options_.read_timeout;
      in_window = 0;
    }
    if (options_.connection.cancelled && options_.connection.cancelled()) {
      return Attempt::failed(make_error(ErrorCode::kCancelled, "{}: cancelled", url.shown()));
    }
    const auto handed_on = Steady::now();
    const auto more = sink.bytes(std::span(buffer).first(*got));
    deadline += Steady::now() - handed_on;  // a slow disk is not the server's fault
    if (!more.ok()) return Attempt::failed(more.error());
    if (!*more) return Attempt::done();
  }
  if (answer.count && done < *answer.count) {
    return Attempt::network(url,
                            make_error(ErrorCode::kIo, "{} of {} bytes, then the end", done, *answer.count));
  }
  return Attempt::done();
}

HttpClient::Attempt HttpClient::follow(const Url& url, BodySink& sink) {
  Url at = url;
  Answer answer;
  const bool remembered = redirect_ && redirect_->from == url;
  if (remembered) {
    at = redirect_->to;
    answer.etag = redirect_->etag;
    answer.linked = !answer.etag.empty();
    answer.commit = redirect_->commit;
  }
  const std::optional<ByteRange> range = sink.range();
  for (int hop = 0; hop <= kMaxRedirects; ++hop) {
    auto opened = channel_to(at);
    if (!opened.ok()) return Attempt::network(at, opened.error());
    Channel* channel = *opened;
    const bool reused = std::exchange(channel->used, true);
    const Deadline deadline = Steady::now() + options_.read_timeout;
    const auto written = channel->connection->write(request_text(at, range), deadline);
    const auto head = written.ok() ? channel->reader.head(deadline) : Result<MessageHead>(written.error());
    if (!head.ok()) {
      Attempt attempt = Attempt::network(at, head.error());
      attempt.stale = attempt.retriable && reused && !channel->reader.any_byte();
      drop(channel);
      return attempt;
    }
    if (answer.commit.empty()) answer.commit = printable(head->header("x-repo-commit"), 64);
    // A redirect may name what it leads to; else the one that answers names it.
    if (const auto linked = head->header("x-linked-etag"); answer.etag.empty() && !linked.empty()) {
      answer.etag = plain_etag(linked);
      answer.linked = true;
    }
    if (head->status == 200 || head->status == 206) {
      const std::string linked = answer.etag;
      const std::string commit = answer.commit;
      if (answer.etag.empty()) answer.etag = plain_etag(head->header("etag"));
      Attempt attempt = receive(*channel, at, *head, range, std::move(answer), sink);
      if (!channel->reader.reusable()) drop(channel);
      if (!attempt.error && at != url) redirect_ = Redirect{url, at, linked, commit};
      return attempt;
    }
    const std::string location(head->header("location"));
    // The body of a refusal or a redirect is not wanted; one that has none leaves the connection usable.
    if (!channel->reader.reusable()) drop(channel);
    if (!is_redirect(head->status)) {
      Attempt attempt = refused(at, *head);
      attempt.stale = remembered && hop == 0 && head->status < 500 && head->status != 429;
      return attempt;
    }
    if (location.empty()) {
      return Attempt::failed(make_error(ErrorCode::kCorrupt, "{}: a redirect to nowhere", at.shown()));
    }
    auto next = resolve_url(at, location);
    if (!next.ok()) return Attempt::failed(named(at, next.error()));
    if (at.secure() && !next->secure()) {
      return Attempt::failed(make_error(ErrorCode::kInvalidArgument, "{}: redirects from https to {}",
                                        at.shown(), next->shown()));
    }
    at = std::move(next).value();
  }
  return Attempt::failed(
      make_error(ErrorCode::kLimit, "{}: more than {} redirects", url.shown(), kMaxRedirects));
}

HttpClient::Attempt HttpClient::attempt(const Url& url, BodySink& sink) {
  const bool remembered = redirect_ && redirect_->from == url;
  Attempt attempt = follow(url, sink);
  if (attempt.error && remembered) redirect_.reset();
  return attempt;
}

std::chrono::milliseconds HttpClient::pause(int failures, const Attempt& attempt) const {
  if (attempt.retry_after) {
    const auto asked = std::min<std::int64_t>(*attempt.retry_after, options_.longest_retry_after.count());
    return std::chrono::seconds(asked);
  }
  const auto base = options_.first_pause.count() << std::min(failures - 1, 20);
  const auto longest = std::min<std::int64_t>(base, options_.longest_pause.count());
  return std::chrono::milliseconds(
      static_cast<std::int64_t>(static_cast<double>(longest) * (0.5 + options_.clock->jitter() / 2)));
}

Result<void> HttpClient::get(const Url& url, BodySink& sink) {
  std::uint64_t before = sink.progress();
  for (int failures = 0;;) {
    const Cancelled& cancelled = options_.connection.cancelled;
    if (cancelled && cancelled()) return make_error(ErrorCode::kCancelled, "{}: cancelled", url.shown());
    const Attempt last = attempt(url, sink);
    if (!last.error) return {};
    // What ran out unnoticed is no failure: the next attempt starts from the hub, on a new connection.
    if (last.stale) continue;
    if (!last.retriable) return *last.error;
    if (sink.progress() - before >= options_.progress_bytes) {
      before = sink.progress();
      failures = 0;
    }
    if (++failures >= options_.attempts) {
      return make_error(last.error->code, "{} (after {} attempts)", last.error->message, failures);
    }
    SLUICE_TRY(options_.clock->sleep(pause(failures, last), cancelled));
  }
}

Result<HttpClient::Text> HttpClient::get_text(const Url& url, std::uint64_t limit) {
  TextSink sink(url, limit);
  SLUICE_TRY(get(url, sink));
  return sink.take();
}

Result<Answer> HttpClient::get_range(const Url& url, std::uint64_t first, std::span<std::byte> to,
                                     std::uint64_t total) {
  RangeSink sink(url, first, to, total);
  while (!sink.full()) {
    const std::uint64_t before = sink.progress();
    SLUICE_TRY(get(url, sink));
    if (sink.progress() == before) {
      return make_error(ErrorCode::kCorrupt, "{}: no bytes at {} of {}", url.shown(), first + before, total);
    }
  }
  return sink.answer();
}

}  // namespace sluice::hub

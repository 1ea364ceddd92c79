// GET requests to a hub: redirects, ranges, retries. One client is used by one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "hub/clock.h"
#include "hub/endpoint.h"
#include "hub/http_message.h"

namespace sluice::hub {

struct HttpOptions {
  ConnectionOptions connection;                   // connect timeout, CA file, cancelling
  std::chrono::milliseconds read_timeout{30000};  // for a head; and for 64 KiB of a body, or its end
  int attempts = 6;                               // in a row without progress
  std::chrono::milliseconds first_pause{500};     // doubled each time, at most `longest_pause`
  std::chrono::milliseconds longest_pause{30000};
  std::chrono::seconds longest_retry_after{600};
  std::uint64_t progress_bytes = 65536;  // that many make the attempts start over
  Clock* clock = &system_clock();
};

/// Bytes first..last of a file, both included.
struct ByteRange {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  [[nodiscard]] std::uint64_t count() const { return last - first + 1; }
};

/// What a successful answer says about its body.
struct Answer {
  bool partial = false;                // 206: the body is the range asked for, or the beginning of it
  std::uint64_t first = 0;             // of the body, within the file
  std::optional<std::uint64_t> count;  // bytes in the body
  std::optional<std::uint64_t> total;  // bytes in the file
  std::string etag;     // what identifies the content: X-Linked-Etag of a redirect, else ETag; without quotes
  bool linked = false;  // whether it came from X-Linked-Etag, which of an LFS file is its SHA-256
  std::string commit;   // X-Repo-Commit, of the first hop that says
  Headers headers;
};

/// Where a body goes. Its errors end the request at once; those of the network lead to another attempt.
class BodySink {
 public:
  virtual ~BodySink() = default;
  /// Asked before every attempt: what is still wanted; nothing for the whole file.
  virtual std::optional<ByteRange> range() = 0;
  /// A 2xx answer, before its body.
  virtual Result<void> begin(const Answer& answer) = 0;
  /// The next bytes; false when no more are wanted.
  virtual Result<bool> bytes(std::span<const std::byte> bytes) = 0;
  /// Grows with what has been got for good.
  [[nodiscard]] virtual std::uint64_t progress() const = 0;
};

/// Follows at most ten redirects, http and https only and never from https to http. The token goes to the
/// endpoint's own origin and nowhere else. Where a redirect led is remembered for the next request of the
/// same address, until it fails. Connections are kept.
///
/// Retried, with pauses: dropped and stalled connections, short bodies, 408, 429 and 5xx (Retry-After is
/// heeded). Errors: kNotFound for 404, kInvalidArgument for 401 and 403, kCancelled, kIo when the attempts
/// are used up, kCorrupt for answers that contradict themselves or the request.
class HttpClient {
 public:
  HttpClient(const Endpoint& endpoint, HttpOptions options);
  ~HttpClient();
  HttpClient(HttpClient&&) noexcept;
  HttpClient& operator=(HttpClient&&) noexcept;

  Result<void> get(const Url& url, BodySink& sink);

  struct Text {
    std::string body;
    Answer answer;
  };
  /// A whole body of at most `limit` bytes.
  Result<Text> get_text(const Url& url, std::uint64_t limit);
  /// Fills `to` with the bytes from `first` on; `total` is the file's size.
  Result<Answer> get_range(const Url& url, std::uint64_t first, std::span<std::byte> to, std::uint64_t total);

  [[nodiscard]] const HttpOptions& options() const { return options_; }

 private:
  struct Channel;
  struct Attempt;
  struct Redirect {
    Url from, to;
    std::string etag, commit;
  };

  Attempt attempt(const Url& url, BodySink& sink);
  Attempt follow(const Url& url, BodySink& sink);
  Attempt receive(Channel& channel, const Url& url, const MessageHead& head,
                  const std::optional<ByteRange>& range, Answer answer, BodySink& sink);
  Attempt refused(const Url& url, const MessageHead& head);
  Result<Channel*> channel_to(const Url& url);
  void drop(const Channel* channel);
  [[nodiscard]] std::string request_text(const Url& url, const std::optional<ByteRange>& range) const;
  [[nodiscard]] std::chrono::milliseconds pause(int failures, const Attempt& attempt) const;

  Endpoint endpoint_;
  HttpOptions options_;
  std::vector<std::unique_ptr<Channel>> channels_;  // the latest first
  std::optional<Redirect> redirect_;
};

/// Seconds that a Retry-After header asks for: a number, or a date after `now`.
std::optional<std::int64_t> parse_retry_after(std::string_view text, std::int64_t now);

}  // namespace sluice::hub

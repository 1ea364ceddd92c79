// HTTP/1.1 answers as bytes on a connection: a head of bounded size, and the body behind it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "hub/connection.h"

namespace sluice::hub {

/// Names in lower case. Of a header that comes twice the first counts.
using Headers = std::map<std::string, std::string, std::less<>>;

struct MessageHead {
  int status = 0;
  bool keep_alive = true;
  bool chunked = false;
  std::optional<std::uint64_t> length;  // Content-Length, unless chunked
  Headers headers;

  [[nodiscard]] std::string_view header(std::string_view name) const {
    const auto at = headers.find(name);
    return at == headers.end() ? std::string_view() : std::string_view(at->second);
  }
};

/// "bytes 0-99/1234" or "bytes 0-99/*".
struct ContentRange {
  std::uint64_t first = 0;
  std::uint64_t last = 0;
  std::optional<std::uint64_t> total;
};

std::optional<ContentRange> parse_content_range(std::string_view text);

/// Digits alone, within 63 bits.
std::optional<std::uint64_t> parse_decimal(std::string_view text);

/// Parses a head without its empty line. kCorrupt where it is no HTTP or contradicts itself.
Result<MessageHead> parse_head(std::string_view text);

/// Reads answers from a connection, one after another. What the server sends is bounded: 64 KiB of head, 200
/// headers, ten interim answers, 1 KiB a chunk line. Errors as Connection's; kCorrupt and kLimit besides.
class MessageReader {
 public:
  explicit MessageReader(Connection& connection);

  /// The next head; its body has to be read before the one after it.
  Result<MessageHead> head(Deadline deadline);

  /// Bytes of the body, at most `to.size()`; 0 at its end. A body shorter than announced is kIo.
  Result<std::size_t> body(std::span<std::byte> to, Deadline deadline);

  /// Whether any byte has come since the last head was asked for.
  [[nodiscard]] bool any_byte() const { return any_byte_; }
  /// Whether the body was read to its end and the server keeps the connection.
  [[nodiscard]] bool reusable() const { return ended_ && keep_alive_; }

 private:
  enum class Framing { kLength, kChunked, kUntilClose };

  Result<bool> fill(Deadline deadline);  // false: the server has closed
  Result<std::string> line(Deadline deadline, std::size_t limit, std::string_view what);
  Result<void> next_chunk(Deadline deadline);

  Connection* connection_;
  std::vector<std::byte> buffer_;
  std::size_t begin_ = 0;
  std::size_t end_ = 0;
  Framing framing_ = Framing::kLength;
  std::uint64_t left_ = 0;  // of the body, or of the chunk
  bool in_chunk_ = false;
  bool ended_ = true;
  bool keep_alive_ = false;
  bool any_byte_ = false;
};

}  // namespace sluice::hub

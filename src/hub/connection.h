// One connection to a server, plain or TLS, on which nothing waits without a deadline.
//
// Of its own rather than a library's: Debian's cpp-httplib decodes percent signs in Location headers, which
// breaks signed addresses, keeps headers of any number, and overflows its stack on a long status line.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "hub/url.h"

namespace sluice::hub {

/// Asked now and then from any thread that waits; true ends the wait with kCancelled.
using Cancelled = std::function<bool()>;

using Deadline = std::chrono::steady_clock::time_point;

struct ConnectionOptions {
  std::chrono::milliseconds connect_timeout{20000};  // of each address, and of the TLS handshake
  std::string ca_file;                               // PEM to trust instead of the system's store
  Cancelled cancelled;
};

/// Errors: kIo for what another attempt may cure (refused, dropped, timed out), kCancelled, and
/// kInvalidArgument for a certificate that is not trusted.
class Connection {
 public:
  virtual ~Connection() = default;

  static Result<std::unique_ptr<Connection>> open(const Url& url, const ConnectionOptions& options);

  virtual Result<void> write(std::string_view bytes, Deadline deadline) = 0;
  /// At least one byte, or 0 when the server has closed its side.
  virtual Result<std::size_t> read(std::span<std::byte> to, Deadline deadline) = 0;
};

}  // namespace sluice::hub

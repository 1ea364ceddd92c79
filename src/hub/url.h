// Addresses on the web, as far as a download needs them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"

namespace sluice::hub {

/// An http or https address. `target` is path and query as they go into a request line; a fragment is
/// dropped.
struct Url {
  std::string scheme = "https";  // lower case
  std::string host;              // lower case; IPv6 without its brackets
  std::uint16_t port = 443;
  std::string target = "/";

  [[nodiscard]] bool secure() const { return scheme == "https"; }
  /// "https://host:port": what a token belongs to.
  [[nodiscard]] std::string origin() const;
  /// Host as a request's Host header has it.
  [[nodiscard]] std::string host_header() const;
  /// For messages: without the query, which may hold a signature.
  [[nodiscard]] std::string shown() const;
  bool operator==(const Url&) const = default;
};

/// Parses an absolute address. Refuses other schemes, user names, and characters that would split a request.
Result<Url> parse_url(std::string_view text);

/// What `location` means in an answer from `base`: absolute, or relative to it.
Result<Url> resolve_url(const Url& base, std::string_view location);

/// Percent-encodes all but letters, digits and "-._~"; slashes stay where `keep_slashes`.
std::string percent_encode(std::string_view text, bool keep_slashes);

/// Foreign text for a message: one line, no control characters, at most `limit` bytes.
std::string printable(std::string_view text, std::size_t limit = 200);

/// ASCII lower case, whatever the locale.
std::string lower_case(std::string_view text);

}  // namespace sluice::hub

#include "hub/url.h"

#include <algorithm>
#include <charconv>

namespace sluice::hub {
namespace {

constexpr std::size_t kMaxUrl = 16384;

bool is_alnum(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

void append_encoded(std::string& to, char c) {
  constexpr std::string_view kHex = "0123456789ABCDEF";
  const auto byte = static_cast<unsigned char>(c);
  to += '%';
  to += kHex[byte >> 4];
  to += kHex[byte & 15U];
}

/// Path and query: must hold nothing that ends a request line; spaces and non-ASCII bytes are encoded, and
/// what is encoded already stays as it is (signatures depend on it).
Result<std::string> clean_target(std::string_view text) {
  std::string target;
  for (const char c : text.substr(0, text.find('#'))) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      return make_error(ErrorCode::kInvalidArgument, "address '{}': a control character in it",
                        printable(text));
    }
    if (byte == ' ' || byte >= 0x80) {
      append_encoded(target, c);
    } else {
      target += c;
    }
  }
  if (target.empty() || target[0] == '?') target.insert(target.begin(), '/');
  return target;
}

Result<void> parse_authority(std::string_view text, std::string_view authority, Url& url) {
  const Error bad = make_error(ErrorCode::kInvalidArgument, "address '{}': needed http(s)://HOST[:PORT]/...",
                               printable(text));
  std::string_view host = authority;
  std::string_view port;
  if (authority.starts_with('[')) {
    const auto close = authority.find(']');
    if (close == std::string_view::npos) return bad;
    host = authority.substr(1, close - 1);
    const std::string_view rest = authority.substr(close + 1);
    if (!rest.empty() && rest[0] != ':') return bad;
    if (!rest.empty()) port = rest.substr(1);
    const auto allowed = [](char c) { return is_alnum(c) || c == ':' || c == '.'; };
    if (!std::all_of(host.begin(), host.end(), allowed)) return bad;
  } else {
    const auto colon = authority.find(':');
    host = authority.substr(0, colon);
    if (colon != std::string_view::npos) port = authority.substr(colon + 1);
    const auto allowed = [](char c) { return is_alnum(c) || c == '.' || c == '-' || c == '_'; };
    if (!std::all_of(host.begin(), host.end(), allowed)) return bad;
  }
  if (host.empty() || host.size() > 253) return bad;
  url.host = lower_case(host);
  url.port = url.secure() ? 443 : 80;
  if (!port.empty()) {
    const auto [end, status] = std::from_chars(port.data(), port.data() + port.size(), url.port);
    if (status != std::errc{} || end != port.data() + port.size() || url.port == 0) return bad;
  }
  return {};
}

}  // namespace

std::string lower_case(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::string printable(std::string_view text, std::size_t limit) {
  std::string shown;
  for (const char c : text.substr(0, limit)) {
    const auto byte = static_cast<unsigned char>(c);
    shown += byte < 0x20 || byte >= 0x7f ? '?' : c;
  }
  if (text.size() > limit) shown += "...";
  return shown;
}

std::string percent_encode(std::string_view text, bool keep_slashes) {
  std::string encoded;
  for (const char c : text) {
    if (is_alnum(c) || c == '-' || c == '.' || c == '_' || c == '~' || (keep_slashes && c == '/')) {
      encoded += c;
    } else {
      append_encoded(encoded, c);
    }
  }
  return encoded;
}

std::string Url::host_header() const {
  std::string text = host.find(':') == std::string::npos ? host : "[" + host + "]";
  if (port != (secure() ? 443 : 80)) text += fmt::format(":{}", port);
  return text;
}

std::string Url::origin() const {
  return fmt::format("{}://{}:{}", scheme, host, port);
}

std::string Url::shown() const {
  return printable(fmt::format("{}://{}{}", scheme, host_header(), target.substr(0, target.find('?'))), 1000);
}

Result<Url> parse_url(std::string_view text) {
  if (text.size() > kMaxUrl) {
    return make_error(ErrorCode::kLimit, "address '{}': {} bytes, at most {} are accepted", printable(text),
                      text.size(), kMaxUrl);
  }
  const auto colon = text.find("://");
  Url url;
  url.scheme = lower_case(text.substr(0, colon));
  if (colon == std::string_view::npos || (url.scheme != "http" && url.scheme != "https")) {
    return make_error(ErrorCode::kInvalidArgument, "address '{}': needed http:// or https://",
                      printable(text));
  }
  const std::string_view rest = text.substr(colon + 3);
  const auto slash = std::min(rest.find_first_of("/?#"), rest.size());
  SLUICE_TRY(parse_authority(text, rest.substr(0, slash), url));
  SLUICE_ASSIGN(url.target, clean_target(rest.substr(slash)));
  return url;
}

Result<Url> resolve_url(const Url& base, std::string_view location) {
  if (location.size() > kMaxUrl) return parse_url(location);
  const auto colon = location.find("://");
  if (colon != std::string_view::npos && colon < location.find_first_of("/?#")) return parse_url(location);
  if (location.starts_with("//")) return parse_url(base.scheme + ":" + std::string(location));
  Url url = base;
  const std::string path = base.target.substr(0, base.target.find('?'));
  std::string target(location);
  if (location.starts_with('?') || location.empty()) {
    target = path + target;
  } else if (!location.starts_with('/')) {
    target = path.substr(0, path.rfind('/') + 1) + target;
  }
  SLUICE_ASSIGN(url.target, clean_target(target));
  return url;
}

}  // namespace sluice::hub

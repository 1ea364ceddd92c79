#include "support/hub_server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <random>

#include "base/json.h"
#include "hub/digest.h"
#include "hub/url.h"

namespace sluice::test {
namespace {

// Percent signs that must arrive as they were sent.
constexpr const char* kSignature = "sig=a%2Fb%2Bc%3D";

std::string percent_decode(const std::string& text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size()) {
      decoded += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
      i += 2;
    } else {
      decoded += text[i];
    }
  }
  return decoded;
}

}  // namespace

void HubReply::set(const std::string& name, const std::string& value) {
  for (auto& [known, old] : headers) {
    if (known == name) {
      old = value;
      return;
    }
  }
  headers.emplace_back(name, value);
}

HubServer::HubServer() {
  EXPECT_EQ(::pipe2(stop_, O_CLOEXEC), 0);
  listen(false);
  listen(true);
}

HubServer::~HubServer() {
  std::vector<std::thread> threads;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    for (const int fd : open_) ::shutdown(fd, SHUT_RDWR);
  }
  EXPECT_EQ(::write(stop_[1], "x", 1), 1);
  for (;;) {  // accepting threads may have added some
    {
      const std::lock_guard lock(mutex_);
      threads = std::exchange(threads_, {});
    }
    if (threads.empty()) break;
    for (std::thread& thread : threads) thread.join();
  }
  for (const int fd : {listeners_[0], listeners_[1], stop_[0], stop_[1]}) ::close(fd);
}

void HubServer::listen(bool cdn) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(::listen(fd, 64), 0);
  EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  listeners_[cdn ? 1 : 0] = fd;
  ports_[cdn ? 1 : 0] = ntohs(address.sin_port);
  threads_.emplace_back([this, fd, cdn] { accept_loop(fd, cdn); });
}

std::string HubServer::endpoint() const {
  return fmt::format("http://127.0.0.1:{}", ports_[0]);
}

std::string HubServer::cdn() const {
  return fmt::format("http://127.0.0.1:{}", ports_[1]);
}

hub::Endpoint HubServer::client_endpoint(const std::string& with) const {
  return std::move(hub::Endpoint::make(endpoint(), with)).value();
}

void HubServer::add(const std::string& path, const std::string& content, bool lfs) {
  hub::Digest blob = hub::Digest::git_blob(content.size());
  blob.add(std::as_bytes(std::span(content)));
  const std::lock_guard lock(mutex_);
  files_[path] = {content, blob.hex(), sha256_of(content), lfs};
}

std::vector<HubRequest> HubServer::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

std::uint64_t HubServer::served(const std::string& path) const {
  const std::lock_guard lock(mutex_);
  const auto at = served_.find(path);
  return at == served_.end() ? 0 : at->second;
}

void HubServer::forget_served() {
  const std::lock_guard lock(mutex_);
  served_.clear();
}

void HubServer::accept_loop(int listener, bool cdn) {
  for (;;) {
    std::array<pollfd, 2> fds = {{{listener, POLLIN, 0}, {stop_[0], POLLIN, 0}}};
    ::poll(fds.data(), fds.size(), -1);
    if (fds[1].revents != 0) return;
    const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) continue;
    const int on = 1;
    ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const std::lock_guard lock(mutex_);
    if (stopping_) {
      ::close(fd);
      return;
    }
    open_.insert(fd);
    threads_.emplace_back([this, fd, cdn] {
      serve(fd, cdn);
      const std::lock_guard done(mutex_);
      open_.erase(fd);
      ::close(fd);
    });
  }
}

void HubServer::serve(int fd, bool cdn) {
  std::string buffer;
  for (;;) {
    std::size_t end = 0;
    while ((end = buffer.find("\r\n\r\n")) == std::string::npos) {
      std::array<char, 4096> bytes;
      const ssize_t got = ::recv(fd, bytes.data(), bytes.size(), 0);
      if (got <= 0 || buffer.size() > 65536) return;
      buffer.append(bytes.data(), static_cast<std::size_t>(got));
    }
    HubRequest request;
    request.cdn = cdn;
    const std::string head = buffer.substr(0, end + 2);
    buffer.erase(0, end + 4);
    request.target = head.substr(4, head.find(' ', 4) - 4);
    for (std::size_t at = head.find("\r\n") + 2; at < head.size(); at = head.find("\r\n", at) + 2) {
      const std::size_t colon = head.find(": ", at);
      request.headers[hub::lower_case(head.substr(at, colon - at))] =
          head.substr(colon + 2, head.find("\r\n", at) - colon - 2);
    }
    if (const auto range = request.headers.find("range"); range != request.headers.end()) {
      const std::string text = range->second.substr(6);  // after "bytes="
      request.range = {std::stoull(text), std::stoull(text.substr(text.find('-') + 1))};
    }
    HubReply reply;
    {
      const std::lock_guard lock(mutex_);
      reply = reply_to(request);
      requests_.push_back(request);
      if (change.change_) change.change_(request, reply);
    }
    answer(fd, request, reply);
    if (reply.raw || reply.cut || reply.close) return;
  }
}

bool HubServer::send(int fd, std::string_view bytes, const std::string& counted) {
  // Counted before they go: whoever has received them shall find them counted.
  const auto count = [this, &counted](std::uint64_t more) {
    if (counted.empty()) return;
    const std::lock_guard lock(mutex_);
    served_[counted] += more;
  };
  count(bytes.size());
  while (!bytes.empty()) {
    const ssize_t sent = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) {
      count(std::uint64_t{0} - bytes.size());
      return false;
    }
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
}

void HubServer::answer(int fd, const HubRequest& request, const HubReply& reply) {
  if (reply.raw) {
    send(fd, *reply.raw, "");
    return;
  }
  std::string head = fmt::format("HTTP/1.1 {} Status\r\nContent-Length: {}\r\n", reply.status,
                                 reply.length.value_or(reply.body.size()));
  for (const auto& [name, value] : reply.headers) head += name + ": " + value + "\r\n";
  const std::string_view body = std::string_view(reply.body).substr(0, reply.cut.value_or(reply.body.size()));
  const bool content = reply.status == 200 || reply.status == 206;
  if (!send(fd, head + "\r\n", "") || !send(fd, body, content ? request.file : "")) return;
  pollfd gone{fd, POLLRDHUP, 0};
  if (reply.stall) ::poll(&gone, 1, -1);
  while (reply.drip && ::poll(&gone, 1, 5) == 0 && send(fd, "x", "")) {
  }
}

HubReply HubServer::content(const HubRequest& request, const StoredFile& file) {
  HubReply reply;
  reply.set("ETag", '"' + (file.lfs ? file.sha256 : file.oid) + '"');
  reply.set("Accept-Ranges", "bytes");
  if (!request.range) {
    reply.body = file.content;
    return reply;
  }
  const auto [first, last] = *request.range;
  if (first >= file.content.size() || last < first) {
    reply.status = 416;
    return reply;
  }
  reply.status = 206;
  reply.body = file.content.substr(first, last - first + 1);
  reply.set("Content-Range",
            fmt::format("bytes {}-{}/{}", first, first + reply.body.size() - 1, file.content.size()));
  return reply;
}

HubReply HubServer::tree(const std::string& query) const {
  std::size_t first = 0;
  if (const auto at = query.find("cursor="); at != std::string::npos)
    first = std::stoull(query.substr(at + 7));
  Json list = Json::array();
  std::size_t index = 0;
  for (const auto& [path, file] : files_) {
    if (index >= first && index < first + page_size) {
      Json entry{{"type", "file"}, {"oid", file.oid}, {"size", file.content.size()}, {"path", path}};
      if (file.lfs)
        entry["lfs"] = {{"oid", file.sha256}, {"size", file.content.size()}, {"pointerSize", 134}};
      list.push_back(entry);
    }
    ++index;
  }
  list.push_back({{"type", "directory"}, {"oid", kCommit}, {"size", 0}, {"path", "a folder"}});
  HubReply reply;
  reply.body = dump_json(list);
  if (first + page_size < index) {
    reply.set("Link", fmt::format("<{}/api/models/acme/tiny/tree/{}?recursive=true&cursor={}>; rel=\"next\"",
                                  endpoint(), kCommit, first + page_size));
  }
  return reply;
}

HubReply HubServer::reply_to(HubRequest& request) const {
  const auto question = request.target.find('?');
  const std::string path = request.target.substr(0, question);
  const std::string query = question == std::string::npos ? "" : request.target.substr(question + 1);
  HubReply refused;
  refused.status = 404;
  if (request.cdn) {
    for (const auto& [name, file] : files_) {
      if (path != "/blob/" + file.sha256) continue;
      request.file = name;
      if (query == kSignature) return content(request, file);
      refused.status = 403;
    }
    return refused;
  }
  const auto authorization = request.headers.find("authorization");
  if (!token.empty() &&
      (authorization == request.headers.end() || authorization->second != "Bearer " + token)) {
    refused.status = 401;
    return refused;
  }
  const std::string api = "/api/models/acme/tiny/";
  if (path == api + "revision/main" || path == api + "revision/" + kCommit) {
    HubReply reply;
    reply.body = dump_json(Json{{"id", "acme/tiny"}, {"sha", kCommit}});
    return reply;
  }
  if (path == api + "tree/" + kCommit) return tree(query);
  const std::string resolve = std::string("/acme/tiny/resolve/") + kCommit + "/";
  if (!path.starts_with(resolve)) return refused;
  const auto found = files_.find(percent_decode(path.substr(resolve.size())));
  if (found == files_.end()) return refused;
  request.file = found->first;
  const StoredFile& file = found->second;
  HubReply reply;
  if (file.lfs) {
    reply.status = 302;
    reply.body = "Found";
    reply.set("Location", cdn() + "/blob/" + file.sha256 + "?" + kSignature);
    reply.set("X-Linked-Etag", '"' + file.sha256 + '"');
  } else {
    reply = content(request, file);
  }
  reply.set("X-Repo-Commit", kCommit);
  return reply;
}

Result<void> FakeClock::sleep(std::chrono::milliseconds time, const hub::Cancelled& cancelled) {
  {
    const std::lock_guard lock(mutex_);
    sleeps_.push_back(time.count());
  }
  if (cancelled && cancelled()) return make_error(ErrorCode::kCancelled, "cancelled");
  return {};
}

std::vector<std::int64_t> FakeClock::sleeps() const {
  const std::lock_guard lock(mutex_);
  return sleeps_;
}

hub::HttpOptions quick(FakeClock& clock) {
  hub::HttpOptions options;
  options.clock = &clock;
  options.attempts = 4;
  options.progress_bytes = 1;
  return options;
}

std::string noise(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(random() & 0xff);
  return text;
}

std::string sha256_of(const std::string& text) {
  hub::Digest digest = hub::Digest::sha256();
  digest.add(std::as_bytes(std::span(text)));
  return digest.hex();
}

}  // namespace sluice::test

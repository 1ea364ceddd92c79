#include "hub/connection.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

namespace sluice::hub {
namespace {

using Clock = std::chrono::steady_clock;

/// A non-blocking TCP socket with waits that end.
class Socket {
 public:
  Socket(int fd, std::string peer, Cancelled cancelled)
      : fd_(fd), peer_(std::move(peer)), cancelled_(std::move(cancelled)) {}
  ~Socket() { ::close(fd_); }
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;

  [[nodiscard]] const std::string& peer() const { return peer_; }

  Result<void> wait(short events, Deadline deadline, std::string_view doing) const {
    for (;;) {
      if (cancelled_ && cancelled_()) return make_error(ErrorCode::kCancelled, "{}: cancelled", peer_);
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
      if (left <= 0) return make_error(ErrorCode::kIo, "{}: {}: no answer in time", peer_, doing);
      // Slices, so that cancelling does not wait for the server.
      pollfd poll_fd{fd_, events, 0};
      const int ready = ::poll(&poll_fd, 1, static_cast<int>(std::min<std::int64_t>(left, 100)));
      if (ready > 0) return {};
      if (ready < 0 && errno != EINTR) return failed(doing);
    }
  }

  Result<void> write(std::string_view bytes, Deadline deadline) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent >= 0) {
        bytes.remove_prefix(static_cast<std::size_t>(sent));
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        SLUICE_TRY(wait(POLLOUT, deadline, "sending"));
      } else if (errno != EINTR) {
        return failed("sending");
      }
    }
    return {};
  }

  Result<std::size_t> read(std::span<std::byte> to, Deadline deadline) const {
    for (;;) {
      const ssize_t got = ::recv(fd_, to.data(), to.size(), 0);
      if (got >= 0) return static_cast<std::size_t>(got);
      if (errno == EAGAIN || errno == EWOULDBLOCK) {
        SLUICE_TRY(wait(POLLIN, deadline, "receiving"));
      } else if (errno != EINTR) {
        return failed("receiving");
      }
    }
  }

  [[nodiscard]] int pending_error() const {
    int error = 0;
    socklen_t size = sizeof error;
    return ::getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
  }

  [[nodiscard]] Error failed(std::string_view doing) const {
    return make_error(ErrorCode::kIo, "{}: {}: {}", peer_, doing, std::strerror(errno));
  }

 private:
  int fd_;
  std::string peer_;
  Cancelled cancelled_;
};

class PlainConnection final : public Connection {
 public:
  explicit PlainConnection(std::unique_ptr<Socket> socket) : socket_(std::move(socket)) {}
  Result<void> write(std::string_view bytes, Deadline deadline) override {
    return socket_->write(bytes, deadline);
  }
  Result<std::size_t> read(std::span<std::byte> to, Deadline deadline) override {
    return socket_->read(to, deadline);
  }

 private:
  std::unique_ptr<Socket> socket_;
};

struct FreeSsl {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};

std::string ssl_reason() {
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  if (code == 0) return "unknown reason";
  const char* reason = ERR_reason_error_string(code);
  return reason == nullptr ? fmt::format("error {:x}", code) : reason;
}

/// TLS over memory buffers, so that the socket's deadlines hold and a closed peer raises no SIGPIPE.
class TlsConnection final : public Connection {
 public:
  explicit TlsConnection(std::unique_ptr<Socket> socket) : socket_(std::move(socket)) {}

  Result<void> start(const Url& url, const ConnectionOptions& options) {
    context_.reset(SSL_CTX_new(TLS_client_method()));
    if (!context_) return set_up_failed();
    SSL_CTX_set_min_proto_version(context_.get(), TLS1_2_VERSION);
    SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
    const int trusted = options.ca_file.empty()
                            ? SSL_CTX_set_default_verify_paths(context_.get())
                            : SSL_CTX_load_verify_locations(context_.get(), options.ca_file.c_str(), nullptr);
    if (trusted != 1) return set_up_failed();
    ssl_.reset(SSL_new(context_.get()));
    if (!ssl_) return set_up_failed();
    BIO* in = BIO_new(BIO_s_mem());
    BIO* out = BIO_new(BIO_s_mem());
    if (in == nullptr || out == nullptr) {
      BIO_free(in);
      BIO_free(out);
      return set_up_failed();
    }
    SSL_set_bio(ssl_.get(), in, out);  // owns both
    SSL_set_connect_state(ssl_.get());
    std::array<unsigned char, sizeof(in6_addr)> address{};
    const bool is_address = ::inet_pton(AF_INET, url.host.c_str(), address.data()) == 1 ||
                            ::inet_pton(AF_INET6, url.host.c_str(), address.data()) == 1;
    const int named = is_address ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl_.get()), url.host.c_str())
                                 : SSL_set1_host(ssl_.get(), url.host.c_str());
    if (named != 1) return set_up_failed();
    if (!is_address && SSL_set_tlsext_host_name(ssl_.get(), url.host.c_str()) != 1) return set_up_failed();
    const Deadline deadline = Clock::now() + options.connect_timeout;
    SLUICE_ASSIGN(const int done, drive(deadline, [this] { return SSL_do_handshake(ssl_.get()); }));
    if (done != 1) return make_error(ErrorCode::kIo, "{}: closed during the TLS handshake", socket_->peer());
    return {};
  }

  Result<void> write(std::string_view bytes, Deadline deadline) override {
    while (!bytes.empty()) {
      const int size = static_cast<int>(std::min<std::size_t>(bytes.size(), 16384));
      SLUICE_ASSIGN(const int sent,
                    drive(deadline, [&] { return SSL_write(ssl_.get(), bytes.data(), size); }));
      if (sent <= 0) return make_error(ErrorCode::kIo, "{}: closed while sending", socket_->peer());
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return {};
  }

  Result<std::size_t> read(std::span<std::byte> to, Deadline deadline) override {
    const int size = static_cast<int>(std::min<std::size_t>(to.size(), std::size_t{1} << 20));
    SLUICE_ASSIGN(const int got, drive(deadline, [&] { return SSL_read(ssl_.get(), to.data(), size); }));
    return static_cast<std::size_t>(got);
  }

 private:
  [[nodiscard]] Error set_up_failed() const {
    return make_error(ErrorCode::kInvalidArgument, "{}: setting up TLS: {}", socket_->peer(), ssl_reason());
  }

  /// Runs one OpenSSL call until it is through; 0 when the peer has closed TLS properly.
  template <class Call>
  Result<int> drive(Deadline deadline, Call call) {
    for (;;) {
      ERR_clear_error();
      const int result = call();
      const int error = result > 0 ? SSL_ERROR_NONE : SSL_get_error(ssl_.get(), result);
      if (const long verified = SSL_get_verify_result(ssl_.get());
          error == SSL_ERROR_SSL && verified != X509_V_OK) {
        return make_error(ErrorCode::kInvalidArgument, "{}: its certificate is not trusted: {}",
                          socket_->peer(), X509_verify_cert_error_string(verified));
      }
      SLUICE_TRY(flush(deadline));
      if (result > 0) return result;
      if (error == SSL_ERROR_ZERO_RETURN) return 0;
      if (error != SSL_ERROR_WANT_READ) {
        return make_error(ErrorCode::kIo, "{}: TLS: {}", socket_->peer(), ssl_reason());
      }
      std::array<std::byte, 16384> buffer;
      SLUICE_ASSIGN(const std::size_t got, socket_->read(buffer, deadline));
      // Without TLS's own end this may be anybody's doing: a drop, not an end.
      if (got == 0) return make_error(ErrorCode::kIo, "{}: connection dropped", socket_->peer());
      BIO_write(SSL_get_rbio(ssl_.get()), buffer.data(), static_cast<int>(got));
    }
  }

  Result<void> flush(Deadline deadline) {
    std::array<char, 16384> buffer;
    for (;;) {
      const int size = BIO_read(SSL_get_wbio(ssl_.get()), buffer.data(), static_cast<int>(buffer.size()));
      if (size <= 0) return {};
      SLUICE_TRY(socket_->write({buffer.data(), static_cast<std::size_t>(size)}, deadline));
    }
  }

  std::unique_ptr<Socket> socket_;
  std::unique_ptr<SSL_CTX, FreeSsl> context_;
  std::unique_ptr<SSL, FreeSsl> ssl_;
};

struct FreeAddresses {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};

Result<std::unique_ptr<Socket>> connect_to(const addrinfo& address, const std::string& peer,
                                           const ConnectionOptions& options) {
  const int fd = ::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, address.ai_protocol);
  if (fd < 0) return make_error(ErrorCode::kIo, "{}: no socket: {}", peer, std::strerror(errno));
  auto socket = std::make_unique<Socket>(fd, peer, options.cancelled);
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (::connect(fd, address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS && errno != EINTR) return socket->failed("connecting");
    SLUICE_TRY(socket->wait(POLLOUT, Clock::now() + options.connect_timeout, "connecting"));
    errno = socket->pending_error();
    if (errno != 0) return socket->failed("connecting");
  }
  return socket;
}

}  // namespace

Result<std::unique_ptr<Connection>> Connection::open(const Url& url, const ConnectionOptions& options) {
  const std::string peer = url.host_header();
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(url.host.c_str(), std::to_string(url.port).c_str(), &hints, &found);
  if (status != 0)
    return make_error(ErrorCode::kIo, "{}: looking up its address: {}", peer, gai_strerror(status));
  const std::unique_ptr<addrinfo, FreeAddresses> addresses(found);

  Error last = make_error(ErrorCode::kIo, "{}: has no address", peer);
  for (const addrinfo* a = addresses.get(); a != nullptr; a = a->ai_next) {
    auto socket = connect_to(*a, peer, options);
    if (!socket.ok()) {
      last = socket.error();
      if (last.code == ErrorCode::kCancelled) return last;
      continue;
    }
    if (!url.secure()) {
      return std::unique_ptr<Connection>(std::make_unique<PlainConnection>(std::move(socket).value()));
    }
    auto tls = std::make_unique<TlsConnection>(std::move(socket).value());
    SLUICE_TRY(tls->start(url, options));
    return std::unique_ptr<Connection>(std::move(tls));
  }
  return last;
}

}  // namespace sluice::hub

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <memory>
#include <thread>

#include "hub/http_client.h"
#include "support/hub_server.h"
#include "support/temp_folder.h"

namespace sluice::hub {
namespace {

using testing::HasSubstr;

struct Free {
  void operator()(EVP_PKEY* p) const { EVP_PKEY_free(p); }
  void operator()(X509* p) const { X509_free(p); }
  void operator()(SSL_CTX* p) const { SSL_CTX_free(p); }
  void operator()(SSL* p) const { SSL_free(p); }
};

/// Answers one request on each of `connections` connections, over TLS with a certificate of its own making.
class TlsServer {
 public:
  TlsServer(const test::TempFolder& folder, const std::string& alternative_name, int connections,
            bool cut = false)
      : key_(EVP_RSA_gen(2048U)), certificate_(X509_new()), context_(SSL_CTX_new(TLS_server_method())) {
    X509* x = certificate_.get();
    X509_set_version(x, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(x), 1);
    X509_gmtime_adj(X509_getm_notBefore(x), -3600);
    X509_gmtime_adj(X509_getm_notAfter(x), 3600);
    X509_set_pubkey(x, key_.get());
    X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("test"), -1, -1, 0);
    X509_set_issuer_name(x, X509_get_subject_name(x));
    X509_EXTENSION* names =
        X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, alternative_name.c_str());
    X509_add_ext(x, names, -1);
    X509_EXTENSION_free(names);
    EXPECT_GT(X509_sign(x, key_.get(), EVP_sha256()), 0);
    ca_file_ = (folder / "ca.pem").string();
    FILE* file = std::fopen(ca_file_.c_str(), "w");
    PEM_write_X509(file, x);
    std::fclose(file);
    SSL_CTX_use_certificate(context_.get(), x);
    SSL_CTX_use_PrivateKey(context_.get(), key_.get());

    listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(listener_, 8), 0);
    ::getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, connections, cut] {
      // What OpenSSL writes to a client that has gone.
      sigset_t pipe;
      sigemptyset(&pipe);
      sigaddset(&pipe, SIGPIPE);
      pthread_sigmask(SIG_BLOCK, &pipe, nullptr);
      for (int i = 0; i < connections; ++i) serve(cut);
    });
  }
  ~TlsServer() {
    thread_.join();
    ::close(listener_);
  }
  TlsServer(const TlsServer&) = delete;
  TlsServer& operator=(const TlsServer&) = delete;

  [[nodiscard]] std::string endpoint() const { return fmt::format("https://127.0.0.1:{}", port_); }
  [[nodiscard]] const std::string& ca_file() const { return ca_file_; }

 private:
  void serve(bool cut) {
    const int fd = ::accept(listener_, nullptr, nullptr);
    const std::unique_ptr<SSL, Free> ssl(SSL_new(context_.get()));
    SSL_set_fd(ssl.get(), fd);
    std::array<char, 4096> request;
    if (SSL_accept(ssl.get()) == 1 &&
        SSL_read(ssl.get(), request.data(), static_cast<int>(request.size())) > 0) {
      // Without a length: only TLS can say that this is all.
      const std::string reply = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + std::string(100000, 'x');
      SSL_write(ssl.get(), reply.data(), static_cast<int>(reply.size()));
      if (!cut) SSL_shutdown(ssl.get());
    }
    ::close(fd);
  }

  std::unique_ptr<EVP_PKEY, Free> key_;
  std::unique_ptr<X509, Free> certificate_;
  std::unique_ptr<SSL_CTX, Free> context_;
  std::string ca_file_;
  int listener_ = -1;
  int port_ = 0;
  std::thread thread_;
};

Result<std::string> get(const TlsServer& server, const std::string& ca_file) {
  test::FakeClock clock;
  HttpOptions options = test::quick(clock);
  options.attempts = 1;
  options.connection.ca_file = ca_file;
  const Endpoint endpoint = *Endpoint::make(server.endpoint(), "");
  HttpClient client(endpoint, options);
  SLUICE_ASSIGN(HttpClient::Text text, client.get_text(endpoint.base(), 1000000));
  return text.body;
}

TEST(Tls, ReadsFromAServerWhoseCertificateIsTrusted) {
  const test::TempFolder folder;
  const TlsServer server(folder, "IP:127.0.0.1", 1);
  EXPECT_EQ(*get(server, server.ca_file()), std::string(100000, 'x'));
}

TEST(Tls, RefusesACertificateThatNobodyVouchesFor) {
  const test::TempFolder folder;
  const TlsServer server(folder, "IP:127.0.0.1", 1);
  const auto got = get(server, "");
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(got.error().message, HasSubstr("not trusted"));
}

TEST(Tls, RefusesACertificateForAnotherHost) {
  const test::TempFolder folder;
  const TlsServer server(folder, "DNS:hub.test,IP:127.0.0.2", 1);
  const auto got = get(server, server.ca_file());
  ASSERT_FALSE(got.ok());
  EXPECT_THAT(got.error().message, HasSubstr("not trusted"));
}

TEST(Tls, AnEndThatTlsDidNotAnnounceIsADrop) {
  const test::TempFolder folder;
  const TlsServer server(folder, "IP:127.0.0.1", 1, true);
  const auto got = get(server, server.ca_file());
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.error().code, ErrorCode::kIo);
}

TEST(Tls, AServerThatSpeaksNoTlsIsAnError) {
  test::HubServer server;
  test::FakeClock clock;
  HttpOptions options = test::quick(clock);
  options.attempts = 1;
  options.connection.connect_timeout = std::chrono::milliseconds(200);
  const Endpoint endpoint = *Endpoint::make("https" + server.endpoint().substr(4), "");
  HttpClient client(endpoint, options);
  EXPECT_EQ(client.get_text(endpoint.base(), 10).error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace sluice::hub

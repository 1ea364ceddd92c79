// A model hub on 127.0.0.1 for tests: one repository, a second host that redirects lead to, and answers that
// a test may change before they are sent.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hub/http_client.h"

namespace sluice::test {

inline constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";

struct HubRequest {
  bool cdn = false;    // came to the second host
  std::string target;  // as sent
  std::string file;    // the repository's file it is for, if any
  std::optional<std::pair<std::uint64_t, std::uint64_t>> range;
  std::map<std::string, std::string> headers;  // names in lower case
};

struct HubReply {
  int status = 200;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;
  std::optional<std::string> raw;       // sent instead of all above, then the connection is closed
  std::optional<std::uint64_t> length;  // announced instead of the body's
  std::optional<std::uint64_t> cut;     // so much of the body is sent, then the connection is closed
  bool stall = false;                   // after the cut: nothing more, until the client goes
  bool drip = false;                    // after the cut: a byte each few milliseconds
  bool close = false;                   // close afterwards, without having said so
  void set(const std::string& name, const std::string& value);
};

/// Repository "acme/tiny", branch "main". `page_size` and `token` are set before the first request.
class HubServer {
  mutable std::mutex mutex_;

 public:
  using Change = std::function<void(const HubRequest&, HubReply&)>;

  /// A function that may be set while the server runs.
  class ChangeSlot {
   public:
    explicit ChangeSlot(std::mutex& mutex) : mutex_(mutex) {}
    ChangeSlot& operator=(Change change) {
      const std::lock_guard lock(mutex_);
      change_ = std::move(change);
      return *this;
    }

   private:
    friend class HubServer;
    std::mutex& mutex_;
    Change change_;
  };

  HubServer();
  ~HubServer();
  HubServer(const HubServer&) = delete;
  HubServer& operator=(const HubServer&) = delete;

  [[nodiscard]] std::string endpoint() const;
  [[nodiscard]] std::string cdn() const;
  [[nodiscard]] hub::Endpoint client_endpoint(const std::string& token = "") const;

  void add(const std::string& path, const std::string& content, bool lfs = true);

  /// Called with each request and the answer it would get; one call at a time.
  ChangeSlot change{mutex_};
  std::size_t page_size = 1000;
  std::string token;  // needed by the hub, not by the second host

  [[nodiscard]] std::vector<HubRequest> requests() const;
  /// Bytes of the file's content that were sent.
  [[nodiscard]] std::uint64_t served(const std::string& path) const;
  void forget_served();

 private:
  struct StoredFile {
    std::string content, oid, sha256;
    bool lfs = true;
  };
  void listen(bool cdn);
  void accept_loop(int listener, bool cdn);
  void serve(int fd, bool cdn);
  void answer(int fd, const HubRequest& request, const HubReply& reply);
  HubReply reply_to(HubRequest& request) const;
  HubReply tree(const std::string& query) const;
  static HubReply content(const HubRequest& request, const StoredFile& file);
  bool send(int fd, std::string_view bytes, const std::string& counted);

  std::map<std::string, StoredFile> files_;
  int ports_[2] = {0, 0};
  int listeners_[2] = {-1, -1};
  int stop_[2] = {-1, -1};  // a pipe; readable once the server stops
  bool stopping_ = false;
  std::set<int> open_;
  std::vector<std::thread> threads_;
  std::vector<HubRequest> requests_;
  std::map<std::string, std::uint64_t> served_;
};

/// Does not sleep; remembers what it was asked to.
class FakeClock final : public hub::Clock {
 public:
  Result<void> sleep(std::chrono::milliseconds time, const hub::Cancelled& cancelled) override;
  double jitter() override { return 0; }  // pauses are half of their full length
  [[nodiscard]] std::int64_t now() const override { return 784111777; }  // Sun, 06 Nov 1994 08:49:37 GMT
  [[nodiscard]] std::vector<std::int64_t> sleeps() const;                // milliseconds

 private:
  mutable std::mutex mutex_;
  std::vector<std::int64_t> sleeps_;
};

/// Options with short timeouts and the clock.
hub::HttpOptions quick(FakeClock& clock);

/// Bytes that differ everywhere, the same for a seed.
std::string noise(std::size_t size, std::uint64_t seed = 1);

std::string sha256_of(const std::string& text);

}  // namespace sluice::test

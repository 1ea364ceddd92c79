#include "hub/http_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/hub_server.h"

namespace sluice::hub {
namespace {

using test::HubReply;
using test::HubRequest;
using testing::ElementsAre;
using testing::HasSubstr;

/// A server whose answers the test gives, and a client of it.
class HttpClientTest : public testing::Test {
 protected:
  HttpClient client(const std::string& token = "") { return {server_.client_endpoint(token), options_}; }
  Url url(const std::string& path) const { return *parse_url(server_.endpoint() + path); }
  Url cdn_url(const std::string& path) const { return *parse_url(server_.cdn() + path); }
  /// Answers by path, 404 for others.
  void on(const std::string& path, std::function<void(const HubRequest&, HubReply&)> answer) {
    answers_[path] = std::move(answer);
    server_.change = [this](const HubRequest& request, HubReply& reply) {
      const auto at = answers_.find(request.target);
      if (at == answers_.end()) return;
      reply = HubReply{};
      at->second(request, reply);
    };
  }
  Result<std::string> text(const std::string& path, std::uint64_t limit = 1000) {
    HttpClient c = client();
    SLUICE_ASSIGN(HttpClient::Text got, c.get_text(url(path), limit));
    return got.body;
  }
  Result<std::string> range(const std::string& path, std::uint64_t first, std::size_t count,
                            std::uint64_t total) {
    std::string bytes(count, '?');
    HttpClient c = client();
    const auto got = c.get_range(url(path), first, std::as_writable_bytes(std::span(bytes)), total);
    if (!got.ok()) return got.error();
    return bytes;
  }
  static void serve_range(const std::string& content, const HubRequest& request, HubReply& reply) {
    const auto [first, last] = *request.range;
    reply.status = 206;
    reply.body = content.substr(first, last - first + 1);
    reply.set("Content-Range", fmt::format("bytes {}-{}/{}", first, last, content.size()));
  }

  test::FakeClock clock_;
  HttpOptions options_ = test::quick(clock_);
  std::map<std::string, std::function<void(const HubRequest&, HubReply&)>> answers_;
  test::HubServer server_;
};

TEST_F(HttpClientTest, ReadsATextAndKeepsTheConnection) {
  on("/a", [](const HubRequest& request, HubReply& reply) {
    EXPECT_EQ(request.headers.at("accept-encoding"), "identity");
    EXPECT_FALSE(request.headers.contains("authorization"));
    reply.body = "hello";
  });
  HttpClient c = client();
  EXPECT_EQ(c.get_text(url("/a"), 5)->body, "hello");
  EXPECT_EQ(c.get_text(url("/a"), 5)->body, "hello");
  EXPECT_TRUE(clock_.sleeps().empty());
}

TEST_F(HttpClientTest, TheTokenGoesToTheHubAloneAlsoWhenItRedirects) {
  on("/a", [this](const HubRequest& request, HubReply& reply) {
    EXPECT_EQ(request.headers.at("authorization"), "Bearer secret");
    reply.status = 302;
    reply.set("Location", server_.cdn() + "/b");
  });
  on("/b", [](const HubRequest& request, HubReply& reply) {
    EXPECT_TRUE(request.cdn);
    EXPECT_FALSE(request.headers.contains("authorization"));
    reply.body = "hello";
  });
  HttpClient c = client("secret");
  EXPECT_EQ(c.get_text(url("/a"), 5)->body, "hello");
  EXPECT_EQ(server_.requests().size(), 2U);
}

TEST_F(HttpClientTest, WhereARedirectLedIsRememberedUntilItFails) {
  int resolved = 0;
  std::string good = "/1";
  on("/a", [&](const HubRequest&, HubReply& reply) {
    ++resolved;
    reply.status = 307;
    reply.set("Location", good);
    reply.set("X-Linked-Etag", "\"abc\"");
  });
  const auto answer = [&](const HubRequest& request, HubReply& reply) {
    if (request.target == good) {
      reply.body = "hello";
    } else {
      reply.status = 403;
    }
  };
  on("/1", answer);
  on("/2", answer);
  HttpClient c = client();
  EXPECT_EQ(c.get_text(url("/a"), 5)->answer.etag, "abc");
  EXPECT_EQ(c.get_text(url("/a"), 5)->answer.etag, "abc");
  EXPECT_EQ(resolved, 1);
  good = "/2";
  EXPECT_TRUE(c.get_text(url("/a"), 5).ok());
  EXPECT_EQ(resolved, 2);
  EXPECT_TRUE(clock_.sleeps().empty());
}

TEST_F(HttpClientTest, EndlessAndNowhereRedirectsAreErrors) {
  on("/loop", [](const HubRequest&, HubReply& reply) {
    reply.status = 301;
    reply.set("Location", "/loop");
  });
  on("/nowhere", [](const HubRequest&, HubReply& reply) { reply.status = 302; });
  on("/file", [](const HubRequest&, HubReply& reply) {
    reply.status = 302;
    reply.set("Location", "file:///etc/passwd");
  });
  EXPECT_EQ(text("/loop").error().code, ErrorCode::kLimit);
  EXPECT_EQ(server_.requests().size(), 11U);
  EXPECT_EQ(text("/nowhere").error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(text("/file").error().code, ErrorCode::kInvalidArgument);
}

TEST_F(HttpClientTest, RefusalsAreClearAndNotRetried) {
  on("/none", [](const HubRequest&, HubReply& reply) {
    reply.status = 404;
    reply.set("X-Error-Message", "Entry not found");
  });
  on("/secret", [](const HubRequest&, HubReply& reply) { reply.status = 401; });
  on("/gated", [](const HubRequest&, HubReply& reply) { reply.status = 403; });
  on("/odd", [](const HubRequest&, HubReply& reply) { reply.status = 418; });
  EXPECT_EQ(text("/none").error().code, ErrorCode::kNotFound);
  EXPECT_THAT(text("/none").error().message, HasSubstr("Entry not found"));
  EXPECT_THAT(text("/secret").error().message, HasSubstr("HF_TOKEN"));
  EXPECT_THAT(text("/gated").error().message, HasSubstr("HF_TOKEN"));
  EXPECT_THAT(text("/odd").error().message, HasSubstr("418"));
  EXPECT_TRUE(clock_.sleeps().empty());
}

TEST_F(HttpClientTest, ServerErrorsAreRetriedWithGrowingPausesAndEnd) {
  int left = 2;
  on("/a", [&](const HubRequest&, HubReply& reply) {
    reply.body = "hello";
    if (left-- > 0) reply.status = left == 1 ? 500 : 502;
  });
  EXPECT_EQ(*text("/a"), "hello");
  EXPECT_THAT(clock_.sleeps(), ElementsAre(250, 500));
  left = 100;
  const auto failed = text("/a");
  EXPECT_THAT(failed.error().message, HasSubstr("after 4 attempts"));
  EXPECT_EQ(failed.error().code, ErrorCode::kIo);
  EXPECT_EQ(left, 96);
}

TEST_F(HttpClientTest, RetryAfterIsHeededWithinBounds) {
  std::vector<std::string> asks = {"7", "Sun, 06 Nov 1994 08:49:40 GMT", "100000000"};
  on("/a", [&](const HubRequest&, HubReply& reply) {
    reply.body = "hello";
    if (asks.empty()) return;
    reply.status = asks.size() == 1 ? 503 : 429;
    reply.set("Retry-After", asks.front());
    asks.erase(asks.begin());
  });
  EXPECT_EQ(*text("/a"), "hello");
  EXPECT_THAT(clock_.sleeps(), ElementsAre(7000, 3000, 600000));
}

TEST_F(HttpClientTest, ADroppedConnectionIsRetriedAndARangeGoesOnAtItsByte) {
  const std::string content = test::noise(10000);
  std::vector<std::uint64_t> firsts;
  on("/a", [&](const HubRequest& request, HubReply& reply) {
    firsts.push_back(request.range->first);
    serve_range(content, request, reply);
    reply.cut = 3000;
  });
  EXPECT_EQ(*range("/a", 1000, 8000, 10000), content.substr(1000, 8000));
  EXPECT_THAT(firsts, ElementsAre(1000, 4000, 7000));
}

TEST_F(HttpClientTest, DropsWithoutProgressEnd) {
  on("/a", [](const HubRequest&, HubReply& reply) {
    reply.body = "hello";
    reply.cut = 0;
  });
  on("/b", [](const HubRequest&, HubReply& reply) { reply.raw = ""; });
  EXPECT_EQ(text("/a").error().code, ErrorCode::kIo);
  EXPECT_EQ(text("/b").error().code, ErrorCode::kIo);
  EXPECT_EQ(clock_.sleeps().size(), 6U);
}

TEST_F(HttpClientTest, AStalledServerAndOneThatDripsTimeOut) {
  options_.read_timeout = std::chrono::milliseconds(60);
  options_.attempts = 2;
  on("/stall", [](const HubRequest&, HubReply& reply) {
    reply.body = "hello";
    reply.cut = 2;
    reply.stall = true;
  });
  on("/drip", [](const HubRequest&, HubReply& reply) {
    reply.length = 1000000;
    reply.cut = 0;
    reply.drip = true;
  });
  EXPECT_THAT(text("/stall").error().message, HasSubstr("no answer in time"));
  EXPECT_THAT(text("/drip", 10000000).error().message, HasSubstr("no answer in time"));
}

TEST_F(HttpClientTest, CancellingEndsAWait) {
  bool stalled = false;
  std::atomic<bool> cancel = false;
  options_.connection.cancelled = [&] { return cancel.load(); };
  on("/stall", [&](const HubRequest&, HubReply& reply) {
    stalled = true;
    cancel = true;
    reply.body = "hello";
    reply.cut = 2;
    reply.stall = true;
  });
  EXPECT_EQ(text("/stall").error().code, ErrorCode::kCancelled);
  EXPECT_TRUE(stalled);
}

TEST_F(HttpClientTest, AKeptConnectionThatWasClosedIsReplacedWithoutAPause) {
  on("/a", [](const HubRequest&, HubReply& reply) {
    reply.body = "hello";
    reply.close = true;  // after having promised to keep it
  });
  HttpClient c = client();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(c.get_text(url("/a"), 5).ok());
  EXPECT_TRUE(clock_.sleeps().empty());
}

TEST_F(HttpClientTest, LongBodiesAreNotTakenIn) {
  on("/length", [](const HubRequest&, HubReply& reply) { reply.body = std::string(2000, 'x'); });
  on("/chunked", [](const HubRequest&, HubReply& reply) {
    std::string raw = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (int i = 0; i < 100; ++i) raw += "10\r\n0123456789abcdef\r\n";
    reply.raw = raw;
  });
  on("/end", [](const HubRequest&, HubReply& reply) {
    reply.raw = "HTTP/1.0 200 OK\r\n\r\n" + std::string(2000, 'x');
  });
  on("/zip", [](const HubRequest&, HubReply& reply) { reply.set("Content-Encoding", "gzip"); });
  for (const char* path : {"/length", "/chunked", "/end"}) {
    EXPECT_EQ(text(path).error().code, ErrorCode::kLimit) << path;
  }
  EXPECT_EQ(text("/zip").error().code, ErrorCode::kUnsupported);
  EXPECT_TRUE(clock_.sleeps().empty());
}

TEST_F(HttpClientTest, AnswersToOtherRangesAreRefused) {
  for (const char* header :
       {"bytes 0-9/100", "bytes 10-20/100", "bytes 10-19/50", "bytes 10-18/100", "", "x"}) {
    on("/a", [header](const HubRequest&, HubReply& reply) {
      reply.status = 206;
      reply.body = "0123456789";
      if (*header != '\0') reply.set("Content-Range", header);
    });
    const auto got = range("/a", 10, 10, 100);
    ASSERT_FALSE(got.ok()) << header;
    EXPECT_EQ(got.error().code, ErrorCode::kCorrupt) << header;
  }
  on("/a", [](const HubRequest&, HubReply& reply) { reply.status = 416; });
  EXPECT_THAT(range("/a", 10, 10, 100).error().message, HasSubstr("shorter than listed"));
}

TEST_F(HttpClientTest, AShorterRangeIsGoneOnWith) {
  const std::string content = test::noise(100);
  on("/a", [&](const HubRequest& request, HubReply& reply) {
    const auto first = request.range->first;
    reply.status = 206;
    reply.body = content.substr(first, 4);
    reply.set("Content-Range", fmt::format("bytes {}-{}/100", first, first + 3));
  });
  EXPECT_EQ(*range("/a", 10, 12, 100), content.substr(10, 12));
}

TEST_F(HttpClientTest, ARangeNearTheStartIsHadFromAServerThatIgnoresRanges) {
  const std::string content = test::noise(100000);
  on("/a", [&](const HubRequest&, HubReply& reply) { reply.body = content; });
  EXPECT_EQ(*range("/a", 70000, 100, 100000), content.substr(70000, 100));
  EXPECT_EQ(range("/a", 1, 10, 99999).error().code, ErrorCode::kCorrupt) << "the file has another size";
}

TEST_F(HttpClientTest, GarbageIsAnErrorAtOnce) {
  on("/a", [](const HubRequest&, HubReply& reply) { reply.raw = test::noise(100000); });
  on("/b", [](const HubRequest&, HubReply& reply) {
    reply.raw = "HTTP/1.1 200 " + std::string(1000000, 'A') + "\r\n\r\n";
  });
  EXPECT_FALSE(text("/a").ok());
  EXPECT_EQ(text("/b").error().code, ErrorCode::kLimit);
}

TEST_F(HttpClientTest, MessagesShowNoSignaturesAndNoControlCharacters) {
  on("/a?sig=secret", [](const HubRequest&, HubReply& reply) {
    reply.status = 404;
    reply.set("X-Error-Message", "gr\xc3\xbc\xc3\x9f\x80");
  });
  const auto got = text("/a?sig=secret");
  EXPECT_THAT(got.error().message, testing::Not(HasSubstr("secret")));
  for (const char c : got.error().message) EXPECT_TRUE(c >= 0x20 && c < 0x7f);
}

TEST_F(HttpClientTest, NobodyListeningIsAnError) {
  HttpClient c = client();
  const auto got = c.get_text(*parse_url("http://127.0.0.1:1/"), 10);
  EXPECT_EQ(got.error().code, ErrorCode::kIo);
  EXPECT_THAT(got.error().message, HasSubstr("127.0.0.1:1"));
}

}  // namespace
}  // namespace sluice::hub

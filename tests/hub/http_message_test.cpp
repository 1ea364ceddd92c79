#include "hub/http_message.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "hub/http_client.h"

namespace sluice::hub {
namespace {

/// Hands out a text in pieces, then closes; or, with `endless`, begins again.
class ScriptedConnection final : public Connection {
 public:
  explicit ScriptedConnection(std::string text, std::size_t piece = 7, bool endless = false)
      : text_(std::move(text)), piece_(piece), endless_(endless) {}
  Result<void> write(std::string_view, Deadline) override { return {}; }
  Result<std::size_t> read(std::span<std::byte> to, Deadline) override {
    if (endless_ && at_ == text_.size()) at_ = repeat_from;
    const std::size_t count = std::min({piece_, to.size(), text_.size() - at_});
    std::memcpy(to.data(), text_.data() + at_, count);
    at_ += count;
    total += count;
    return count;
  }
  std::size_t repeat_from = 0;
  std::size_t total = 0;

 private:
  std::string text_;
  std::size_t piece_;
  bool endless_;
  std::size_t at_ = 0;
};

struct Read {
  Result<MessageHead> head = make_error(ErrorCode::kIo, "none");
  Result<std::string> body = make_error(ErrorCode::kIo, "none");
};

Result<std::string> read_body(MessageReader& reader) {
  std::string body;
  std::array<std::byte, 5> buffer;
  for (;;) {
    SLUICE_ASSIGN(const std::size_t got, reader.body(buffer, {}));
    if (got == 0) return body;
    body.append(reinterpret_cast<const char*>(buffer.data()), got);
  }
}

Read read_message(const std::string& text, std::size_t piece = 7) {
  ScriptedConnection connection(text, piece);
  MessageReader reader(connection);
  Read read;
  read.head = reader.head({});
  if (read.head.ok()) read.body = read_body(reader);
  return read;
}

TEST(HttpMessage, BodiesByLengthByChunksAndToTheEnd) {
  for (const std::size_t piece : {1, 3, 1000}) {
    EXPECT_EQ(*read_message("HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world!!", piece).body,
              "hello world");
    EXPECT_EQ(*read_message("HTTP/1.1 200\r\nTransfer-Encoding: chunked\r\n\r\n"
                            "5;a=b\r\nhello\r\n6\r\n world\r\n0\r\nX: y\r\n\r\n",
                            piece)
                   .body,
              "hello world");
    EXPECT_EQ(*read_message("HTTP/1.0 200 OK\n\nhello", piece).body, "hello");
    EXPECT_EQ(*read_message("HTTP/1.1 204 No\r\n\r\nrest", piece).body, "");
  }
}

TEST(HttpMessage, SeveralAnswersOnOneConnection) {
  ScriptedConnection connection(
      "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na"
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n1\r\nb\r\n0\r\n\r\n"
      "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
  MessageReader reader(connection);
  ASSERT_TRUE(reader.head({}).ok());
  EXPECT_FALSE(reader.reusable()) << "its body is not read yet";
  EXPECT_EQ(*read_body(reader), "a");
  EXPECT_TRUE(reader.reusable());
  ASSERT_TRUE(reader.head({}).ok());
  EXPECT_EQ(*read_body(reader), "b");
  EXPECT_TRUE(reader.reusable());
  ASSERT_TRUE(reader.head({}).ok());
  EXPECT_FALSE(reader.reusable());
}

TEST(HttpMessage, HeadsThatAreNoHttpAreRefused) {
  for (const char* text : {
           "SSH-2.0-x\r\n\r\n",
           "HTTP/2 200 OK\r\n\r\n",
           "HTTP/1.1 20 OK\r\n\r\n",
           "HTTP/1.1 2x0 OK\r\n\r\n",
           "HTTP/1.1 2000 OK\r\n\r\n",
           "HTTP/1.1 -20 OK\r\n\r\n",
           "HTTP/1.1 099 OK\r\n\r\n",
           "HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
           "HTTP/1.1 200 OK\r\n: empty\r\n\r\n",
           "HTTP/1.1 200 OK\r\nA: b\r\n folded\r\n\r\n",
           "HTTP/1.1 200 OK\r\nA: b\x01\r\n\r\n",
           "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
           "HTTP/1.1 200 OK\r\nContent-Length: 1x\r\n\r\n",
           "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
           "HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\n",
           "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
           "HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\n",
           "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
           "HTTP/1.1 301 Go\r\nLocation: /a\r\nLocation: /b\r\n\r\n",
       }) {
    const auto head = read_message(text).head;
    ASSERT_FALSE(head.ok()) << text;
    EXPECT_NE(head.error().code, ErrorCode::kIo) << text;
  }
}

TEST(HttpMessage, TruncatedAnswersAreDropsWhereverTheyEnd) {
  for (const std::string whole :
       {"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabcd",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n"}) {
    ASSERT_TRUE(read_message(whole).body.ok());
    for (std::size_t size = 0; size < whole.size(); ++size) {
      const Read read = read_message(whole.substr(0, size));
      const Error& error = read.head.ok() ? read.body.error() : read.head.error();
      EXPECT_EQ(error.code, ErrorCode::kIo) << size;
    }
  }
}

TEST(HttpMessage, ChunksThatLieAreRefused) {
  for (const char* chunks : {"x\r\n", "-1\r\n", "\r\n", "ffffffffffffffff\r\n", "fffffffffffffffff\r\n",
                             "1\r\nab\r\n", "1 1\r\na\r\n", "0x1\r\na\r\n"}) {
    const auto body =
        read_message(std::string("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n") + chunks).body;
    ASSERT_FALSE(body.ok()) << chunks;
    EXPECT_EQ(body.error().code, ErrorCode::kCorrupt) << chunks;
  }
}

TEST(HttpMessage, EndlessHeadsAndTrailersStopBeforeTheyCostMemory) {
  struct Case {
    const char *begin, *again;
  };
  for (const Case& c : std::initializer_list<Case>{
           {"HTTP/1.1 200 ", "AAAAAAAAAAAAAAAA"},                                       // one line
           {"HTTP/1.1 200 OK\r\n", "X: y\r\n"},                                         // headers
           {"", "HTTP/1.1 100 Continue\r\n\r\n"},                                       // interim answers
           {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "0000000000000"},  // a chunk size
           {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", "aaaaaaaaaa"},   // an extension
           {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "X: y\r\n"},  // trailers
       }) {
    ScriptedConnection connection(std::string(c.begin) + c.again, 1000, true);
    connection.repeat_from = std::strlen(c.begin);
    MessageReader reader(connection);
    const auto head = reader.head({});
    const auto body = head.ok() ? read_body(reader) : Result<std::string>(head.error());
    ASSERT_FALSE(body.ok()) << c.begin << c.again;
    EXPECT_EQ(body.error().code, ErrorCode::kLimit) << body.error().message;
    EXPECT_LT(connection.total, 200000U);
  }
}

TEST(HttpMessage, MutatedAnswersNeitherCrashNorRunOn) {
  const std::string whole =
      "HTTP/1.1 206 Partial\r\nContent-Range: bytes 0-3/9\r\nTransfer-Encoding: chunked\r\nETag: "
      "\"x\"\r\n\r\n"
      "4\r\nabcd\r\n0\r\n\r\n";
  std::mt19937 random(7);
  for (int i = 0; i < 20000; ++i) {
    std::string text = whole;
    for (int edits = 1 + static_cast<int>(random() % 4); edits > 0; --edits) {
      const std::size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = static_cast<char>(random());
          break;
        case 1:
          text.erase(at, random() % 4);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 8));
          break;
      }
      if (text.empty()) text = "H";
    }
    const Read read = read_message(text, 1 + random() % 40);
    EXPECT_LE(read.body.ok() ? read.body->size() : 0, text.size());
  }
}

TEST(HttpMessage, ContentRanges) {
  const auto range = parse_content_range("bytes 5-9/10");
  ASSERT_TRUE(range);
  EXPECT_EQ(range->first, 5U);
  EXPECT_EQ(range->last, 9U);
  EXPECT_EQ(range->total, 10U);
  EXPECT_FALSE(parse_content_range("bytes 0-0/*")->total);
  for (const char* bad :
       {"", "bytes", "bytes */10", "bytes 5-4/10", "bytes 5-10/10", "bytes 5/10-9", "items 5-9/10",
        "bytes -5-9/10", "bytes 5-9", "bytes 5-9/", "bytes 5-18446744073709551615/*"}) {
    EXPECT_FALSE(parse_content_range(bad)) << bad;
  }
}

TEST(HttpMessage, RetryAfterIsSecondsOrADate) {
  EXPECT_EQ(parse_retry_after("120", 0), 120);
  EXPECT_EQ(parse_retry_after("Sun, 06 Nov 1994 08:49:47 GMT", 784111777), 10);
  EXPECT_EQ(parse_retry_after("Sun, 06 Nov 1994 08:49:27 GMT", 784111777), 0);
  for (const char* bad : {"", "soon", "-1", "1.5", "Sun, 06 Nov 1994"})
    EXPECT_FALSE(parse_retry_after(bad, 0)) << bad;
}

}  // namespace
}  // namespace sluice::hub

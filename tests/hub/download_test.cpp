#include "hub/download.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <future>
#include <set>
#include <thread>

#include "base/json.h"
#include "hub/download_fixture.h"

namespace sluice::hub {
namespace {

using test::HubReply;
using test::HubRequest;
using testing::HasSubstr;

class DownloadTest : public test::DownloadFixture {
 protected:
  DownloadTest() { server_.add("model.bin", content_); }
  /// Has `change` work on answers that carry the file's bytes.
  void on_content(std::function<void(const HubRequest&, HubReply&)> change) {
    server_.change = [change = std::move(change)](const HubRequest& request, HubReply& reply) {
      if (request.cdn) change(request, reply);
    };
  }
  /// Downloads until `bytes` are on disk, then cancels.
  void begin(std::uint64_t bytes) {
    DownloadOptions some = options(1);
    std::atomic<bool> enough = false;
    some.progress = [&](std::uint64_t done, std::uint64_t) { enough = done >= bytes; };
    some.http.connection.cancelled = [&] { return enough.load(); };
    on_content([bytes](const HubRequest& request, HubReply& reply) {
      const std::uint64_t first = request.range->first;
      if (first + reply.body.size() <= bytes) return;
      reply.cut = bytes - std::min(first, bytes);
      reply.stall = true;
    });
    EXPECT_EQ(download("model.bin", some).error().code, ErrorCode::kCancelled);
    EXPECT_EQ(server_.served("model.bin"), bytes);
    EXPECT_FALSE(exists("model.bin"));
    server_.change = nullptr;
    server_.forget_served();
  }

  const std::string content_ = test::noise(10 * kRange + 123);
  const std::uint64_t size_ = content_.size();
};

TEST_F(DownloadTest, ComesInRangesOverSeveralConnectionsEachByteOnce) {
  std::uint64_t last = 0;
  DownloadOptions some = options();
  some.progress = [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_GE(done, last);
    EXPECT_EQ(total, size_);
    last = done;
  };
  const auto got = download("model.bin", some);
  ASSERT_TRUE(got.ok()) << got.error().message;
  EXPECT_EQ(on_disk("model.bin"), content_);
  EXPECT_EQ(last, size_);
  EXPECT_EQ(got->fetched, size_);
  EXPECT_EQ(server_.served("model.bin"), size_);
  EXPECT_TRUE(clean("model.bin"));
}

TEST_F(DownloadTest, SmallEmptyAndPlainGitFilesInFolders) {
  server_.add("a b/c/one", "1", false);
  server_.add("none", "", false);
  server_.add("none.lfs", "", true);
  ASSERT_TRUE(download("a b/c/one").ok());
  EXPECT_EQ(on_disk("a b/c/one"), "1");
  for (const char* path : {"none", "none.lfs"}) {
    ASSERT_TRUE(download(path).ok());
    EXPECT_EQ(on_disk(path), "");
    EXPECT_TRUE(clean(path));
  }
}

TEST_F(DownloadTest, AFileThatIsThereIsVerifiedAndKept) {
  folder_.write("model.bin", content_);
  const auto got = download("model.bin");
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->fetched, 0U);
  EXPECT_EQ(server_.served("model.bin"), 0U);
}

TEST_F(DownloadTest, AFileThatIsThereButWrongIsReplaced) {
  std::string wrong = content_;
  wrong[5] ^= 1;
  folder_.write("model.bin", wrong);
  ASSERT_TRUE(download("model.bin").ok());
  EXPECT_EQ(on_disk("model.bin"), content_);
}

TEST_F(DownloadTest, ResumesAtItsByte) {
  for (const std::uint64_t bytes : {std::uint64_t{1}, kRange - 1, kRange, 3 * kRange + 1000, size_ - 1}) {
    begin(bytes);
    const auto got = download("model.bin");
    ASSERT_TRUE(got.ok()) << got.error().message;
    EXPECT_EQ(got->resumed, bytes);
    EXPECT_EQ(server_.served("model.bin"), size_ - bytes);
    EXPECT_EQ(on_disk("model.bin"), content_);
    std::filesystem::remove(folder_ / "model.bin");
    server_.forget_served();
  }
}

TEST_F(DownloadTest, ResumesWithTheRangesItBeganWith) {
  begin(2 * kRange + 10);
  DownloadOptions other = options();
  other.range_bytes = 1000;
  ASSERT_TRUE(download("model.bin", other).ok());
  EXPECT_EQ(server_.served("model.bin"), size_ - 2 * kRange - 10);
}

TEST_F(DownloadTest, AConnectionThatDropsAgainAndAgainCostsNoByteTwice) {
  on_content([](const HubRequest&, HubReply& reply) { reply.cut = 10000; });
  ASSERT_TRUE(download("model.bin").ok());
  EXPECT_EQ(server_.served("model.bin"), size_);
  EXPECT_EQ(on_disk("model.bin"), content_);
}

TEST_F(DownloadTest, ServerErrorsAreRiddenOut) {
  std::set<std::uint64_t> asked;
  on_content([&](const HubRequest& request, HubReply& reply) {
    if (asked.insert(request.range->first).second) reply.status = 503;  // the first time
  });
  ASSERT_TRUE(download("model.bin").ok());
  EXPECT_EQ(on_disk("model.bin"), content_);
  EXPECT_FALSE(clock_.sleeps().empty());
}

TEST_F(DownloadTest, AServerThatStaysBrokenLeavesAPartToResume) {
  int left = 3;
  on_content([&](const HubRequest&, HubReply& reply) {
    if (left-- <= 0) reply.status = 500;
  });
  const auto got = download("model.bin", options(1));
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.error().code, ErrorCode::kIo);
  EXPECT_FALSE(exists("model.bin"));
  server_.change = nullptr;
  ASSERT_TRUE(download("model.bin").ok());
  EXPECT_EQ(server_.served("model.bin"), size_);
}

TEST_F(DownloadTest, WrongBytesAreGotOnceMoreThenRefused) {
  int wrong = 1;
  on_content([&](const HubRequest& request, HubReply& reply) {
    if (request.range->first == kRange && wrong-- > 0) reply.body[7] ^= 1;
  });
  const auto got = download("model.bin");
  ASSERT_TRUE(got.ok()) << got.error().message;
  EXPECT_EQ(got->fetched, 2 * size_);
  EXPECT_EQ(on_disk("model.bin"), content_);
  std::filesystem::remove(folder_ / "model.bin");
  wrong = 2;
  const auto refused = download("model.bin");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(refused.error().message, HasSubstr(test::sha256_of(content_)));
  EXPECT_FALSE(exists("model.bin"));
  EXPECT_TRUE(clean("model.bin"));
}

TEST_F(DownloadTest, WrongBytesOfAPlainGitFileAreRefusedToo) {
  server_.add("config.json", "{}", false);
  server_.change = [](const HubRequest& request, HubReply& reply) {
    if (request.file == "config.json") reply.body = "[]";
  };
  EXPECT_EQ(download("config.json").error().code, ErrorCode::kCorrupt);
}

/// Answers that no redirect names: the second host's ETag is what counts.
void unlink_etag(HubReply& reply) {
  std::erase_if(reply.headers, [](const auto& header) { return header.first == "X-Linked-Etag"; });
}

TEST_F(DownloadTest, AnETagThatChangesMidwayDropsWhatCameBefore) {
  int answers = 0;
  server_.change = [&](const HubRequest& request, HubReply& reply) {
    unlink_etag(reply);
    if (!request.cdn) return;
    // The old content has other bytes: a mix of both would not pass.
    if (++answers <= 3) {
      reply.set("ETag", "\"old\"");
      for (char& c : reply.body) c = 'o';
    }
  };
  const auto got = download("model.bin", options(1));
  ASSERT_TRUE(got.ok()) << got.error().message;
  EXPECT_EQ(on_disk("model.bin"), content_);
  EXPECT_EQ(got->fetched, size_ + 3 * kRange) << "the fourth answer was not read";
}

TEST_F(DownloadTest, AnETagThatKeepsChangingIsAnError) {
  int answers = 0;
  server_.change = [&](const HubRequest& request, HubReply& reply) {
    unlink_etag(reply);
    if (request.cdn) reply.set("ETag", fmt::format("\"{}\"", ++answers));
  };
  const auto got = download("model.bin");
  ASSERT_FALSE(got.ok());
  EXPECT_THAT(got.error().message, HasSubstr("changed at the hub"));
  EXPECT_TRUE(clean("model.bin"));
}

TEST_F(DownloadTest, ResumingUnderAnotherETagStartsAnew) {
  begin(3 * kRange);
  server_.change = [&](const HubRequest& request, HubReply& reply) {
    unlink_etag(reply);
    if (request.cdn) reply.set("ETag", "\"other\"");
  };
  ASSERT_TRUE(download("model.bin", options(1)).ok());
  EXPECT_EQ(on_disk("model.bin"), content_);
}

TEST_F(DownloadTest, ALinkedETagOfOtherContentIsAnErrorAtOnce) {
  server_.change = [&](const HubRequest& request, HubReply& reply) {
    if (!request.cdn && reply.status == 302) reply.set("X-Linked-Etag", '"' + std::string(64, 'e') + '"');
  };
  EXPECT_THAT(download("model.bin").error().message, HasSubstr("now has content"));
  EXPECT_TRUE(clock_.sleeps().empty());
}

TEST_F(DownloadTest, APartOfOtherContentIsNotContinued) {
  begin(3 * kRange);
  // As if the branch had moved: the list names another content of the same size.
  RepoFile other = *repository().find("model.bin");
  server_.add("other.bin", test::noise(size_, 9));
  HttpClient client(server_.client_endpoint(), test::quick(clock_));
  const auto renewed = Repository::open(server_.client_endpoint(), *parse_repo_name("acme/tiny"), client);
  ASSERT_TRUE(renewed.ok());
  for (const char* ending : {".part", ".part.ranges"}) {
    std::filesystem::rename(folder_ / (std::string("model.bin") + ending),
                            folder_ / (std::string("other.bin") + ending));
  }
  const auto got = download_file(*renewed, *renewed->find("other.bin"), folder_.path(), options());
  ASSERT_TRUE(got.ok());
  EXPECT_EQ(got->resumed, 0U);
  EXPECT_EQ(on_disk("other.bin"), test::noise(size_, 9));
}

TEST_F(DownloadTest, ADamagedJournalOrPartStartsAnew) {
  for (int damage = 0; damage < 5; ++damage) {
    begin(3 * kRange);
    const auto journal = folder_ / "model.bin.part.ranges";
    std::string bytes = on_disk("model.bin.part.ranges");
    switch (damage) {
      case 0:
        bytes = "";
        break;
      case 1:
        bytes[0] = 'x';
        break;
      case 2:
        bytes.resize(bytes.size() - 1);
        break;
      case 3:
        bytes[4096 + 7] = '\x7f';
        break;  // more done than the range has
      default:
        std::filesystem::resize_file(folder_ / "model.bin.part", 1000);
        break;
    }
    folder_.write("model.bin.part.ranges", bytes);
    const auto got = download("model.bin");
    ASSERT_TRUE(got.ok()) << damage << ": " << got.error().message;
    EXPECT_EQ(got->resumed, 0U) << damage;
    EXPECT_EQ(on_disk("model.bin"), content_);
    std::filesystem::remove(folder_ / "model.bin");
    server_.forget_served();
  }
}

TEST_F(DownloadTest, BytesLostOnDiskAreFoundByTheChecksum) {
  begin(3 * kRange);
  {  // as after a power cut: the journal has them, the disk has not
    std::fstream part(folder_ / "model.bin.part", std::ios::binary | std::ios::in | std::ios::out);
    part.seekp(100);
    part.write("\0\0\0\0\0\0\0\0", 8);
  }
  const auto got = download("model.bin");
  ASSERT_TRUE(got.ok()) << got.error().message;
  EXPECT_EQ(on_disk("model.bin"), content_);
}

TEST_F(DownloadTest, AServerThatIgnoresRangesSendsTheWholeOnce) {
  on_content([&](const HubRequest&, HubReply& reply) {
    reply.status = 200;
    reply.body = content_;
    reply.headers.clear();
  });
  const auto got = download("model.bin", options(1));
  ASSERT_TRUE(got.ok()) << got.error().message;
  EXPECT_EQ(on_disk("model.bin"), content_);
  EXPECT_EQ(got->fetched, size_);
}

TEST_F(DownloadTest, AServerThatIgnoresRangesIsResumedWithoutWritingTwice) {
  begin(2 * kRange + 5);
  int cut = 2;
  on_content([&](const HubRequest&, HubReply& reply) {
    reply.status = 200;
    reply.body = content_;
    if (cut-- > 0) reply.cut = static_cast<std::uint64_t>(6 - cut) * kRange;
  });
  ASSERT_TRUE(download("model.bin").ok());
  EXPECT_EQ(on_disk("model.bin"), content_);
}

TEST_F(DownloadTest, AnotherSizeThanListedIsAnError) {
  on_content([&](const HubRequest& request, HubReply& reply) {
    reply.set("Content-Range", fmt::format("bytes {}-{}/{}", request.range->first,
                                           request.range->first + reply.body.size() - 1, size_ + 1));
  });
  EXPECT_THAT(download("model.bin").error().message, HasSubstr("when it was listed"));
  on_content([](const HubRequest&, HubReply& reply) { reply.status = 416; });
  EXPECT_THAT(download("model.bin").error().message, HasSubstr("shorter than listed"));
  on_content([](const HubRequest&, HubReply& reply) {
    reply.raw = "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nshort";
  });
  EXPECT_EQ(download("model.bin").error().code, ErrorCode::kCorrupt);
}

TEST_F(DownloadTest, TwoDownloadsOfOneFileAtOnceAreRefused) {
  std::promise<void> running;
  std::atomic<bool> announced = false;
  std::atomic<bool> stop = false;
  on_content([&](const HubRequest&, HubReply& reply) {
    reply.cut = 10;
    reply.stall = true;
    if (!announced.exchange(true)) running.set_value();
  });
  DownloadOptions first = options(1);
  first.http.connection.cancelled = [&] { return stop.load(); };
  const RepoFile file = *repository().find("model.bin");
  std::thread thread([&] { EXPECT_EQ(download("model.bin", first).error().code, ErrorCode::kCancelled); });
  running.get_future().wait();
  const auto second = download("model.bin");
  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.error().message, HasSubstr("another download"));
  stop = true;
  thread.join();
  server_.change = nullptr;
  EXPECT_TRUE(download("model.bin").ok());
}

TEST_F(DownloadTest, ADiskTooSmallIsSaidBeforeTheFirstByte) {
  server_.change = [&](const HubRequest& request, HubReply& reply) {
    if (request.target.find("/tree/") == std::string::npos) return;
    Json list = *parse_json(reply.body, "list");
    list[0]["size"] = std::uint64_t{1} << 52;
    list[0]["lfs"]["size"] = std::uint64_t{1} << 52;
    reply.body = dump_json(list);
  };
  const auto got = download("model.bin");
  ASSERT_FALSE(got.ok());
  EXPECT_THAT(got.error().message, HasSubstr("needed on its disk"));
  EXPECT_EQ(server_.served("model.bin"), 0U);
  EXPECT_TRUE(clean("model.bin"));
}

TEST_F(DownloadTest, WhatIsInTheWayIsAnErrorAndLeftAlone) {
  std::filesystem::create_directories(folder_ / "model.bin.part");
  EXPECT_EQ(download("model.bin").error().code, ErrorCode::kIo);
  std::filesystem::remove(folder_ / "model.bin.part");
  const auto other = folder_.write("other", "precious");
  std::filesystem::create_symlink(other, folder_ / "model.bin.part");
  EXPECT_EQ(download("model.bin").error().code, ErrorCode::kIo);
  EXPECT_EQ(on_disk("other"), "precious");
  std::filesystem::remove(folder_ / "model.bin.part");
  std::filesystem::create_directories(folder_ / "model.bin");
  EXPECT_EQ(download("model.bin").error().code, ErrorCode::kIo);
}

}  // namespace
}  // namespace sluice::hub

#include "hub/shard_window.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "hub/download_fixture.h"
#include "store/safetensors.h"

namespace sluice::hub {
namespace {

using test::HubReply;
using test::HubRequest;
using testing::HasSubstr;

constexpr std::uint64_t kDirect = 100;
constexpr std::size_t kTensor = 200000;

/// Five shards of one tensor "wN" each, of which two may lie on disk.
class ShardWindowTest : public test::DownloadFixture {
 protected:
  ShardWindowTest() {
    for (int i = 0; i < 5; ++i) {
      values_.push_back(test::noise(kTensor, static_cast<std::uint64_t>(i)));
      names_.push_back(fmt::format("shard-{}", i));
      const store::TensorData tensor{
          fmt::format("w{}", i), store::Dtype::kU8, {kTensor}, std::as_bytes(std::span(values_.back()))};
      const auto path = made_ / names_.back();
      EXPECT_TRUE(store::write_safetensors(path, std::span(&tensor, 1)).ok());
      contents_.push_back(*read_text_file(path, 1 << 20));
      server_.add(names_.back(), contents_.back());
    }
  }
  ShardWindowOptions window_options() {
    ShardWindowOptions made;
    made.download = options(2);
    made.download.range_bytes = kRange + 5000;  // more than a reader asks for at once
    made.shards_on_disk = 2;
    made.direct_limit = kDirect;
    return made;
  }
  std::unique_ptr<ShardWindow> start(const ShardWindowOptions& options) {
    auto window = ShardWindow::start(repository(), names_, folder_.path(), options);
    EXPECT_TRUE(window.ok()) << (window.ok() ? "" : window.error().message);
    return std::move(window).value();
  }
  static std::unique_ptr<File> open(ShardWindow& window, const std::string& name) {
    auto file = window.open(name);
    EXPECT_TRUE(file.ok()) << (file.ok() ? "" : file.error().message);
    return std::move(file).value();
  }
  static Result<std::string> read(const File& file, std::uint64_t offset, std::size_t count) {
    std::string bytes(count, '?');
    SLUICE_TRY(file.read_at(offset, std::as_writable_bytes(std::span(bytes))));
    return bytes;
  }
  /// Holds back the content of shards whose name satisfies `held`, but for small ranges.
  void hold(std::function<bool(const std::string&)> held) {
    server_.change = [held = std::move(held)](const HubRequest& request, HubReply& reply) {
      if (!request.cdn || !held(request.file) || is_ahead(request)) return;
      reply.cut = 10;
      reply.stall = true;
    };
  }
  /// Whether a request is one of a reader: those of the downloader are larger, or reach the file's end.
  static bool is_ahead(const HubRequest& request) {
    return request.range->second - request.range->first < kRange && request.range->second < kTensor;
  }

  test::TempFolder made_;
  std::vector<std::string> names_, values_, contents_;
};

TEST_F(ShardWindowTest, PackingOneAfterTheOtherNeedsTwoShardsOfDisk) {
  const auto window = start(window_options());
  for (std::size_t i = 0; i < names_.size(); ++i) {
    auto file = open(*window, names_[i]);
    EXPECT_EQ(file->size(), contents_[i].size());
    const auto tensors = store::SafetensorsFile::open(std::move(file));
    ASSERT_TRUE(tensors.ok()) << tensors.error().message;
    const auto bytes = (*tensors)->read(*(*tensors)->find(fmt::format("w{}", i)));
    ASSERT_TRUE(bytes.ok()) << bytes.error().message;
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size()), values_[i]);
    EXPECT_FALSE(i + 2 < names_.size() && exists(names_[i + 2]));
    ASSERT_TRUE(window->release(names_[i]).ok());
    EXPECT_FALSE(exists(names_[i]));
  }
  EXPECT_FALSE(window->failure());
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(ShardWindowTest, HeadersOfAllShardsAreThereBeforeAnyShardIs) {
  hold([](const std::string&) { return true; });
  const auto window = start(window_options());
  for (std::size_t i = 0; i < names_.size(); ++i) {
    const auto tensors = store::SafetensorsFile::open(open(*window, names_[i]));
    ASSERT_TRUE(tensors.ok()) << tensors.error().message;
    EXPECT_NE((*tensors)->find(fmt::format("w{}", i)), nullptr);
  }
}

TEST_F(ShardWindowTest, SmallReadsOfLaterShardsGoToTheHub) {
  hold([](const std::string&) { return true; });
  const auto window = start(window_options());
  for (const std::size_t i : {1, 3, 4}) {
    const auto file = open(*window, names_[i]);
    EXPECT_EQ(*read(*file, 1000, kDirect), contents_[i].substr(1000, kDirect));
  }
  const auto file = open(*window, names_[1]);
  EXPECT_EQ(read(*file, contents_[1].size(), 1).error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(read(*file, UINT64_MAX, 2).error().code, ErrorCode::kCorrupt);
  EXPECT_TRUE(read(*file, contents_[1].size(), 0).ok());
}

TEST_F(ShardWindowTest, ALargeReadBeyondTheWindowNamesBothShards) {
  const auto window = start(window_options());
  const auto file = open(*window, names_[2]);
  const auto got = read(*file, 1000, 2000);
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(got.error().message, HasSubstr("shard-2"));
  EXPECT_THAT(got.error().message, HasSubstr("shard-0"));
  ASSERT_TRUE(window->release(names_[0]).ok());
  EXPECT_EQ(*read(*file, 1000, 2000), contents_[2].substr(1000, 2000));
}

TEST_F(ShardWindowTest, AReleasedShardIsNeitherReadNorWaitedFor) {
  hold([](const std::string& name) { return name == "shard-0"; });
  const auto window = start(window_options());
  const auto first = open(*window, names_[0]);
  const auto second = open(*window, names_[1]);
  // While shard 0 hangs: nothing of it is needed after all.
  ASSERT_TRUE(window->release(names_[0]).ok());
  ASSERT_TRUE(window->release(names_[0]).ok());
  EXPECT_EQ(*read(*second, 1000, 2000), contents_[1].substr(1000, 2000));
  EXPECT_THAT(read(*first, 1000, 2000).error().message, HasSubstr("released"));
  EXPECT_FALSE(exists(names_[0]));
  EXPECT_TRUE(clean(names_[0]));
  EXPECT_EQ(window->release("other").error().code, ErrorCode::kNotFound);
  EXPECT_EQ(window->open("other").error().code, ErrorCode::kNotFound);
}

TEST_F(ShardWindowTest, PackedShardsAreNeverDownloaded) {
  folder_.write("shard-0", contents_[0]);  // left when the packer was killed
  ShardWindowOptions some = window_options();
  some.packed = {"shard-0", "shard-1", "shard-2"};
  const auto window = start(some);
  EXPECT_FALSE(exists("shard-0"));
  const auto last = open(*window, names_[4]);
  EXPECT_EQ(*read(*last, 1000, 2000), contents_[4].substr(1000, 2000));
  for (const char* name : {"shard-0", "shard-1", "shard-2"}) EXPECT_EQ(server_.served(name), 0U);
  // Its metadata can still be read.
  const auto packed = open(*window, names_[1]);
  EXPECT_EQ(*read(*packed, 1000, kDirect), contents_[1].substr(1000, kDirect));
  EXPECT_THAT(read(*packed, 1000, 2000).error().message, HasSubstr("packed already"));
  EXPECT_TRUE(window->release(names_[1]).ok());
}

TEST_F(ShardWindowTest, KeepsTheSourceIfAsked) {
  ShardWindowOptions some = window_options();
  some.keep_source = true;
  const auto window = start(some);
  for (std::size_t i = 0; i < names_.size(); ++i) {
    EXPECT_TRUE(read(*open(*window, names_[i]), 1000, 2000).ok());
    ASSERT_TRUE(window->release(names_[i]).ok());
  }
  for (std::size_t i = 0; i < names_.size(); ++i) EXPECT_EQ(on_disk(names_[i]), contents_[i]);
}

TEST_F(ShardWindowTest, ShardsOfAnEarlierRunAreVerifiedNotDownloadedAgain) {
  folder_.write("shard-0", contents_[0]);
  const auto window = start(window_options());
  const auto file = open(*window, names_[0]);
  const std::uint64_t before = server_.served("shard-0");
  EXPECT_EQ(*read(*file, 1000, 2000), contents_[0].substr(1000, 2000));
  EXPECT_LE(before, 65536U) << "its header at most";
  EXPECT_EQ(server_.served("shard-0"), before);
}

TEST_F(ShardWindowTest, AFailedDownloadReachesEveryWaitingReader) {
  std::atomic<bool> fail = false;
  server_.change = [&](const HubRequest& request, HubReply& reply) {
    if (!request.cdn || is_ahead(request) || request.file != "shard-1") return;
    if (fail) {
      reply.status = 404;
    } else {
      reply.cut = 0;
    }
  };
  test::FakeClock clock;
  ShardWindowOptions some = window_options();
  some.download.http.attempts = 1000000;
  const auto window = start(some);
  const auto zero = open(*window, names_[0]);
  const auto one = open(*window, names_[1]);
  EXPECT_TRUE(read(*zero, 1000, 2000).ok());
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) {
    readers.emplace_back([&] { EXPECT_EQ(read(*one, 1000, 2000).error().code, ErrorCode::kNotFound); });
  }
  fail = true;
  for (std::thread& reader : readers) reader.join();
  ASSERT_TRUE(window->failure());
  EXPECT_EQ(window->failure()->code, ErrorCode::kNotFound);
  EXPECT_TRUE(read(*zero, 1000, 2000).ok()) << "what is on disk can be read";
  ASSERT_TRUE(window->release(names_[0]).ok());
  EXPECT_EQ(read(*open(*window, names_[2]), 1000, 2000).error().code, ErrorCode::kNotFound);
}

TEST_F(ShardWindowTest, WhatWasReadAheadIsComparedWithWhatWasVerified) {
  std::atomic<bool> go = false;
  server_.change = [&](const HubRequest& request, HubReply& reply) {
    if (!request.cdn || request.file == "shard-0") {
      if (request.cdn && !is_ahead(request) && !go) reply.cut = 0;
      return;
    }
    // A hub that answers small requests with something else.
    if (request.file == "shard-1" && request.range->first == 1000) reply.body[3] ^= 1;
  };
  ShardWindowOptions some = window_options();
  some.download.http.attempts = 1000000;
  const auto window = start(some);
  const auto one = open(*window, names_[1]);
  ASSERT_TRUE(read(*one, 1000, 50).ok());
  go = true;
  const auto got = read(*one, 1000, 2000);
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(got.error().message, HasSubstr("read ahead"));
}

TEST_F(ShardWindowTest, EndingItEndsTheWaitAndFilesMayOutliveIt) {
  std::promise<void> asked;
  std::atomic<bool> once = false;
  server_.change = [&](const HubRequest& request, HubReply& reply) {
    if (!request.cdn || is_ahead(request)) return;
    reply.cut = 10;
    reply.stall = true;
    if (!once.exchange(true)) asked.set_value();
  };
  auto window = start(window_options());
  const auto file = open(*window, names_[0]);
  std::thread reader([&] { EXPECT_EQ(read(*file, 1000, 2000).error().code, ErrorCode::kCancelled); });
  asked.get_future().wait();
  window.reset();
  reader.join();
  EXPECT_EQ(read(*file, 1000, 2000).error().code, ErrorCode::kCancelled);
  EXPECT_TRUE(exists("shard-0.part")) << "to be resumed";
}

TEST_F(ShardWindowTest, HeadersThatLieAreRefused) {
  server_.add("huge", std::string("\xff\xff\xff\xff\xff\xff\xff\x7f{}", 10));
  server_.add("long", std::string("\x09\0\0\0\0\0\0\0{}", 10));
  server_.add("tiny", "1234567");
  server_.add("big", std::string("\0\0\2\0\0\0\0\0", 8) + std::string(200000, ' '));
  names_ = {"huge", "long", "tiny", "big", "shard-0"};
  hold([](const std::string&) { return true; });
  ShardWindowOptions some = window_options();
  some.header_limit = 100000;
  const auto window = start(some);
  for (const char* name : {"huge", "long", "tiny"}) {
    EXPECT_EQ(window->open(name).error().code, ErrorCode::kCorrupt) << name;
  }
  EXPECT_EQ(window->open("big").error().code, ErrorCode::kLimit);
}

TEST_F(ShardWindowTest, AHeaderLargerThanOneRequestIsFetchedWhole) {
  std::vector<store::TensorData> tensors;
  for (int i = 0; i < 2000; ++i)
    tensors.push_back({fmt::format("a-tensor-with-a-long-name-{}", i), store::Dtype::kU8, {0}, {}});
  ASSERT_TRUE(store::write_safetensors(made_ / "many", tensors).ok());
  server_.add("many", *read_text_file(made_ / "many", 1 << 20));
  names_.push_back("many");
  const auto window = start(window_options());
  const auto file = store::SafetensorsFile::open(open(*window, "many"));
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ((*file)->header().tensors.size(), 2000U);
}

TEST_F(ShardWindowTest, HeldBackItDownloadsNothingAndReadsAsItIsAsked) {
  ShardWindowOptions some = window_options();
  some.hold = true;
  const auto window = start(some);
  const auto last = open(*window, names_[4]);
  EXPECT_EQ(*read(*last, 1000, 2000), contents_[4].substr(1000, 2000)) << "larger than direct_limit";
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  EXPECT_EQ(window->begin({}, 0).error().code, ErrorCode::kInvalidArgument);
  ASSERT_TRUE(window->begin({"shard-0", "shard-1"}, 1).ok());
  const std::uint64_t before = server_.served("shard-2");
  EXPECT_EQ(*read(*open(*window, names_[2]), 1000, 50), contents_[2].substr(1000, 50));
  EXPECT_GE(server_.served("shard-2") - before, contents_[2].size()) << "from the verified shard";
  EXPECT_EQ(server_.served("shard-0"), 0U);
  EXPECT_THAT(read(*open(*window, names_[0]), 1000, 50).error().message, HasSubstr("packed already"));
}

TEST_F(ShardWindowTest, OnceBegunReadsBeyondTheWindowWait) {
  ShardWindowOptions some = window_options();
  some.hold = true;
  const auto window = start(some);
  std::vector<std::unique_ptr<File>> files;
  for (const std::string& name : names_) files.push_back(open(*window, name));
  ASSERT_TRUE(window->begin({}, 2).ok());
  std::vector<std::thread> readers;
  for (std::size_t i = names_.size(); i-- > 0;) {
    readers.emplace_back([&, i] {
      EXPECT_EQ(*read(*files[i], 1000, 20), contents_[i].substr(1000, 20));
      EXPECT_EQ(*read(*files[i], 1000, 2000), contents_[i].substr(1000, 2000));
      EXPECT_TRUE(window->release(names_[i]).ok());
    });
  }
  for (std::thread& reader : readers) reader.join();
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  std::uint64_t all = 0;
  for (const std::string& content : contents_) all += content.size();
  EXPECT_EQ(window->fetched(), all);
}

TEST_F(ShardWindowTest, StoppingWakesReadsBeyondTheWindow) {
  ShardWindowOptions some = window_options();
  some.hold = true;
  const auto window = start(some);
  const auto file = open(*window, names_[3]);
  ASSERT_TRUE(window->begin({}, 1).ok());
  std::thread reader([&] { EXPECT_EQ(read(*file, 1000, 2000).error().code, ErrorCode::kCancelled); });
  window->stop();
  reader.join();
}

TEST_F(ShardWindowTest, BadListsAreRefused) {
  const auto code = [&](const std::vector<std::string>& shards, std::size_t on_disk) {
    ShardWindowOptions some = window_options();
    some.shards_on_disk = on_disk;
    const auto window = ShardWindow::start(repository(), shards, folder_.path(), some);
    return window.ok() ? std::optional<ErrorCode>() : window.error().code;
  };
  EXPECT_EQ(code({"shard-0", "other"}, 1), ErrorCode::kNotFound);
  EXPECT_EQ(code({"shard-0", "shard-0"}, 1), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({"shard-0"}, 0), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({}, 1), std::nullopt);
}

}  // namespace
}  // namespace sluice::hub

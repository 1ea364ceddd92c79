#include "pull/pull.h"

#include <atomic>
#include <fstream>
#include <set>

#include "base/file.h"
#include "pack/workspace.h"
#include "pull/pull_fixture.h"

namespace sluice::pull {
namespace {

namespace fs = std::filesystem;
using test::HubReply;
using test::HubRequest;
using testing::HasSubstr;

constexpr std::size_t kShards = test::kLayerShards;

std::set<std::string> listed_shards(const fs::path& folder) {
  std::set<std::string> names;
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string file = it->path().filename().string();
    const std::size_t at = file.find(".safetensors");
    if (at != std::string::npos && !file.ends_with(".json")) names.insert(file.substr(0, at));
  }
  return names;
}

/// Shards in a folder, whole or in part, at one moment: those that two lists, one after the other, have.
std::size_t shards_in(const fs::path& folder) {
  const auto first = listed_shards(folder);
  const auto second = listed_shards(folder);
  return static_cast<std::size_t>(
      std::count_if(first.begin(), first.end(), [&](const auto& name) { return second.contains(name); }));
}

class PullTest : public test::PullFixture {
 protected:
  PullTest() { serve_model({}, kShards, test::by_layer); }
  static std::string name(std::size_t shard) { return test::shard_name(shard, kShards); }
  /// Whether it is one of the download and not of its header or something small.
  static bool is_content(const HubRequest& request) {
    return request.cdn && request.range->second - request.range->first >= 65536;
  }
};

TEST_F(PullTest, NeverMoreShardsOnDiskThanAllowed) {
  for (const std::size_t allowed : {2, 3}) {
    fs::remove_all(target_);
    PullOptions some = options();
    some.shards_on_disk = allowed;
    std::size_t most = 0;
    PullProgress last;
    some.on_progress = [&](const PullProgress& progress) {
      most = std::max(most, shards_in(work_));
      EXPECT_LE(progress.downloaded, progress.to_download);
      EXPECT_LE(progress.packed, progress.to_pack);
      last = progress;
    };
    some.on_plan = [&](const PullPlan& plan) {
      EXPECT_EQ(plan.shards_on_disk, allowed);
      EXPECT_LT(plan.on_disk_bytes, plan.download_bytes);
      EXPECT_GT(plan.store_bytes, 0U);
      EXPECT_EQ(shards_in(work_), 0U) << "nothing is downloaded before the plan is known";
      return Result<void>();
    };
    expect_pulled(some);
    EXPECT_LE(most, allowed);
    EXPECT_GE(most, 1U);
    EXPECT_EQ(last.shards_done, kShards);
    EXPECT_EQ(last.downloaded, last.to_download);
    EXPECT_EQ(last.packed, last.to_pack);
  }
}

TEST_F(PullTest, FaultsOnTheWayChangeNothing) {
  std::atomic<int> count = 0;
  server_.change = [&](const HubRequest&, HubReply& reply) {
    switch (++count % 7) {
      case 1:
        reply.status = 503;
        break;
      case 2:
        reply.cut = reply.body.size() / 2;
        break;
      case 3:
        reply.status = 429;
        reply.set("Retry-After", "3");
        break;
      case 5:
        reply.raw = "";
        break;
      default:
        break;
    }
  };
  PullOptions some = options();
  some.download.http.attempts = 40;
  expect_pulled(some);
}

TEST_F(PullTest, ASecondPullFindsItThere) {
  expect_pulled(options());
  const auto fetched = [this] {
    std::uint64_t bytes = 0;
    for (std::size_t i = 0; i < kShards; ++i) bytes += content_served(name(i));
    return bytes;
  };
  const std::uint64_t before = fetched();
  const auto again = pull();
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_TRUE(again->pack.was_there);
  EXPECT_EQ(again->fetched, 0U);
  EXPECT_GT(before, 0U);
  EXPECT_EQ(fetched(), before);
  expect_store();
}

TEST_F(PullTest, AnotherStoreIsReplacedOnlyByForce) {
  expect_pulled(options());
  PullOptions other = options();
  other.pack.experts = {spec::Format::kQ8};
  const auto refused = pull(other);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("--force"));
  expect_store();
  other.pack.force = true;
  expect_pulled(other);
}

TEST_F(PullTest, AWrongShardIsFetchedTwiceThenRefusedAndTheRestIsKept) {
  const auto lie = [](const HubRequest& request, HubReply& reply) {
    if (is_content(request) && request.file == name(3)) reply.body.front() ^= 1;
  };
  server_.change = lie;
  const auto got = pull();
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.error().code, ErrorCode::kCorrupt);
  EXPECT_THAT(got.error().message, HasSubstr(name(3)));
  EXPECT_THAT(got.error().message, HasSubstr("checksum"));
  expect_no_model();
  EXPECT_FALSE(fs::exists(work_ / name(3)));
  server_.change = nullptr;
  const std::uint64_t first = content_served(name(0));
  EXPECT_GT(first, 0U);
  expect_pulled(options());
  EXPECT_EQ(content_served(name(0)), first);
}

TEST_F(PullTest, ChangedOnceItIsFetchedAnew) {
  std::atomic<bool> lied = false;
  server_.change = [&](const HubRequest& request, HubReply& reply) {
    if (is_content(request) && request.file == name(2) && !lied.exchange(true)) {
      reply.body.front() ^= 1;
    }
  };
  expect_pulled(options());
  EXPECT_TRUE(lied);
}

TEST_F(PullTest, CancelledItGoesOnWithoutThePackedShards) {
  std::atomic<bool> stop = false;
  PullOptions some = options();
  some.shards_on_disk = 2;
  some.download.http.connection.cancelled = [&] { return stop.load(); };
  std::size_t packed = 0;
  some.on_progress = [&](const PullProgress& progress) {
    packed = progress.shards_done;
    if (packed == 3) stop = true;
  };
  // What comes after them never arrives: whoever waits for it must be woken.
  server_.change = [&](const HubRequest& request, HubReply& reply) {
    if (!request.cdn || (request.file != name(4) && request.file != name(5))) return;
    if (request.range->first < 65536 && request.range->second < 65536) return;
    reply.cut = 100;
    reply.stall = true;
  };
  const auto got = pull(some);
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.error().code, ErrorCode::kCancelled) << got.error().message;
  EXPECT_GE(packed, 3U);
  expect_no_model();
  server_.change = nullptr;
  std::vector<std::uint64_t> before;
  for (std::size_t i = 0; i < packed; ++i) before.push_back(content_served(name(i)));
  PullOptions rest = options();
  rest.on_plan = [&](const PullPlan& plan) {
    EXPECT_EQ(plan.needed, kShards - packed);
    EXPECT_GT(plan.made_bytes, 0U);
    return Result<void>();
  };
  expect_pulled(rest);
  for (std::size_t i = 0; i < packed; ++i) EXPECT_EQ(content_served(name(i)), before[i]) << i;
}

TEST_F(PullTest, TwoAtOnceIntoOneFolderAreRefused) {
  PullOptions some = options();
  int asked = 0;
  some.on_plan = [&](const PullPlan&) {
    ++asked;
    const auto second = pull();
    EXPECT_THAT(second.ok() ? "done" : second.error().message, HasSubstr("another pull"));
    return Result<void>();
  };
  expect_pulled(some);
  EXPECT_EQ(asked, 1);
}

TEST_F(PullTest, WhatAnotherCommitLeftIsDroppedButForShardsOfTheSameContent) {
  fs::create_directories(work_ / "sub");
  std::ofstream(work_ / ".pull") << R"({"repository": "acme/tiny", "commit": "beef"})";
  std::ofstream(work_ / "chat_template.jinja") << "of the other commit";
  std::ofstream(work_ / "config.json") << "{}";
  std::ofstream(work_ / "gone.safetensors") << "old";
  std::ofstream(work_ / "sub/gone.safetensors.part") << "old";
  fs::copy_file(source_ / name(0), work_ / name(0));
  std::ofstream(work_ / name(1)) << "of the other commit";
  std::ofstream(work_ / (name(2) + ".part")) << "of the other commit";
  PullOptions some = options();
  some.on_plan = [&](const PullPlan&) {
    EXPECT_FALSE(fs::exists(work_ / "chat_template.jinja"));
    EXPECT_FALSE(fs::exists(work_ / "gone.safetensors"));
    EXPECT_FALSE(fs::exists(work_ / "sub/gone.safetensors.part"));
    return Result<void>();
  };
  expect_pulled(some);
  EXPECT_EQ(content_served(name(0)), 0U);
}

TEST_F(PullTest, ThePackOfAnotherCommitIsNotMixedIn) {
  std::atomic<bool> stop = false;
  PullOptions some = options();
  some.download.http.connection.cancelled = [&] { return stop.load(); };
  some.on_progress = [&](const PullProgress& progress) { stop = progress.shards_done >= 2; };
  ASSERT_FALSE(pull(some).ok());
  // The same shards, so the same sizes and headers, but for another name of the source.
  const std::string lock = (work_ / ".pull").string();
  std::ofstream(lock, std::ios::trunc) << "x";
  server_.add("generation_config.json", R"({"top_k": 3})", false);
  std::ofstream(source_ / "generation_config.json") << R"({"top_k": 3})";
  PullOptions rest = options();
  rest.on_plan = [&](const PullPlan& plan) {
    EXPECT_EQ(plan.needed, kShards) << "another store than the one that was begun";
    return Result<void>();
  };
  expect_pulled(rest);
}

TEST_F(PullTest, KeepsTheSourceAsACheckpoint) {
  const fs::path kept = folder_ / "kept";
  PullOptions some = options();
  some.keep_source = kept;
  expect_pulled(some);
  const auto expect_kept = [&] {
    for (const auto& entry : fs::directory_iterator(source_)) {
      const auto file = entry.path().filename();
      EXPECT_TRUE(read_text_file(kept / file, 1 << 30).value() ==
                  read_text_file(entry.path(), 1 << 30).value())
          << file;
    }
    EXPECT_TRUE(store::open_checkpoint(kept).ok());
    EXPECT_FALSE(fs::exists(work_));
    EXPECT_FALSE(fs::exists(kept / (name(0) + ".part")));
  };
  expect_kept();
  // A store that is there needs no shards, a kept source that lacks one does.
  fs::remove(kept / name(4));
  const std::uint64_t before = content_served(name(3));
  const auto again = pull(some);
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_TRUE(again->pack.was_there);
  EXPECT_EQ(again->fetched, fs::file_size(source_ / name(4)));
  EXPECT_EQ(content_served(name(3)), before);
  expect_kept();
  // Packed anew from what is kept, without a download.
  fs::remove_all(target_);
  const auto anew = pull(some);
  ASSERT_TRUE(anew.ok()) << anew.error().message;
  EXPECT_EQ(anew->fetched, 0U);
  expect_store();
  expect_kept();
}

TEST_F(PullTest, KeepsTheWholeSourceThoughAnEarlierRunDidNot) {
  std::atomic<bool> stop = false;
  PullOptions some = options();
  some.download.http.connection.cancelled = [&] { return stop.load(); };
  some.on_progress = [&](const PullProgress& progress) { stop = progress.shards_done >= 2; };
  ASSERT_FALSE(pull(some).ok());
  PullOptions rest = options();
  rest.keep_source = folder_ / "kept/";
  const auto got = pull(rest);
  ASSERT_TRUE(got.ok()) << got.error().message;
  EXPECT_GT(got->pack.resumed, 0U);
  EXPECT_TRUE(store::open_checkpoint(folder_ / "kept").ok());
  EXPECT_TRUE(store::open_store(target_).ok());
}

TEST_F(PullTest, ForeignFoldersAreLeftAlone) {
  const auto refused = [&](const PullOptions& some, const std::string& part) {
    const auto got = pull(some);
    ASSERT_FALSE(got.ok());
    EXPECT_EQ(got.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(got.error().message, HasSubstr(part));
  };
  PullOptions some = options();
  some.keep_source = target_;
  refused(some, "both");
  EXPECT_FALSE(fs::exists(target_));
  const fs::path mine = folder_ / "mine";
  fs::create_directories(mine);
  std::ofstream(mine / "config.json") << "mine";
  some.keep_source = mine;
  refused(some, "mine: holds other things");
  fs::create_directories(target_);
  std::ofstream(target_ / "thesis.txt") << "mine";
  refused(options(), "thesis.txt");
  EXPECT_EQ(std::distance(fs::directory_iterator(target_), fs::directory_iterator()), 1);
  EXPECT_EQ(read_text_file(mine / "config.json", 100).value(), "mine");
  const fs::path kept = folder_ / "kept";
  fs::create_directories(kept);
  std::ofstream(kept / ".pull") << R"({"repository": "acme/other", "commit": "beef"})";
  fs::remove(target_ / "thesis.txt");
  some.keep_source = kept;
  refused(some, "another repository or commit");
}

TEST_F(PullTest, TooLittleDiskIsKnownBeforeTheDownload) {
  std::uint64_t needed = 0;
  PullOptions some = options();
  some.on_plan = [&](const PullPlan& plan) {
    needed = plan.store_bytes + plan.on_disk_bytes;
    return Result<void>(make_error(ErrorCode::kInvalidArgument, "no, thanks"));
  };
  const auto declined = pull(some);
  ASSERT_FALSE(declined.ok());
  EXPECT_EQ(declined.error().message, "no, thanks");
  EXPECT_FALSE(fs::exists(target_));
  some = options();
  some.free_space = [&](const fs::path&) { return Result<std::uint64_t>(needed - 1); };
  const auto got = pull(some);
  ASSERT_FALSE(got.ok());
  EXPECT_EQ(got.error().code, ErrorCode::kIo);
  EXPECT_THAT(got.error().message, HasSubstr("for the store"));
  EXPECT_FALSE(fs::exists(target_));
  for (std::size_t i = 0; i < kShards; ++i) EXPECT_EQ(content_served(name(i)), 0U);
  some.free_space = [&](const fs::path&) { return Result<std::uint64_t>(needed); };
  expect_pulled(some);
}

TEST_F(PullTest, WhatIsThereNeedsNoSpaceAgain) {
  std::atomic<bool> stop = false;
  std::uint64_t needed = 0;
  PullOptions some = options();
  some.on_plan = [&](const PullPlan& plan) {
    needed = plan.on_disk_bytes;
    return Result<void>();
  };
  some.download.http.connection.cancelled = [&] { return stop.load(); };
  some.on_progress = [&](const PullProgress& progress) { stop = progress.shards_done >= 2; };
  ASSERT_FALSE(pull(some).ok());
  const auto source = store::open_checkpoint(source_);
  ASSERT_TRUE(source.ok());
  const auto outlook = pack::look_ahead(**source, folder_ / "elsewhere", {});
  ASSERT_TRUE(outlook.ok());
  if (pack::bytes_made(target_) < outlook->bytes) GTEST_SKIP() << "this file system reserves no space";
  PullOptions rest = options();
  rest.free_space = [&](const fs::path&) { return Result<std::uint64_t>(needed); };
  expect_pulled(rest);
}

}  // namespace
}  // namespace sluice::pull

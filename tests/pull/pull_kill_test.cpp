#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "pull/pull_fixture.h"

namespace sluice::pull {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kShards = test::kLayerShards;
constexpr std::size_t kArriving = 3;  // shards before the first that does not arrive

/// The process that gets killed: this program again, running this test alone.
TEST(PullChild, DISABLED_Run) {
  const char* address = std::getenv("PULL_TEST_ENDPOINT");
  const char* folder = std::getenv("PULL_TEST_FOLDER");
  const char* pipe = std::getenv("PULL_TEST_PIPE");
  if (address == nullptr || folder == nullptr || pipe == nullptr) GTEST_SKIP() << "runs as a child only";
  const int fd = std::atoi(pipe);
  test::FakeClock clock;
  PullOptions options = test::quick_pull(clock);
  options.on_progress = [fd](const PullProgress& progress) {
    const auto done = static_cast<char>(progress.shards_done);
    if (::write(fd, &done, 1) != 1) std::abort();
  };
  const auto got =
      pull(*hub::Endpoint::make(address, ""), *hub::parse_repo_name("acme/tiny"), folder, options);
  FAIL() << "was not killed: " << (got.ok() ? "done" : got.error().message);
}

class PullKillTest : public test::PullFixture {
 protected:
  static std::string name(std::size_t shard) { return test::shard_name(shard, kShards); }

  /// Runs a child until it has packed so many shards, and kills it.
  void kill_after(std::size_t packed) {
    std::array<int, 2> pipe{};
    ASSERT_EQ(::pipe(pipe.data()), 0);
    ::setenv("PULL_TEST_ENDPOINT", server_.endpoint().c_str(), 1);
    ::setenv("PULL_TEST_FOLDER", target_.c_str(), 1);
    ::setenv("PULL_TEST_PIPE", std::to_string(pipe[1]).c_str(), 1);
    std::string program = fs::read_symlink("/proc/self/exe");
    std::string filter = "--gtest_filter=PullChild.DISABLED_Run";
    std::string disabled = "--gtest_also_run_disabled_tests";
    std::array<char*, 4> arguments = {program.data(), filter.data(), disabled.data(), nullptr};
    pid_t child = 0;
    ASSERT_EQ(::posix_spawn(&child, program.c_str(), nullptr, nullptr, arguments.data(), environ), 0);
    ::close(pipe[1]);
    char done = -1;
    while (done != static_cast<char>(packed) && ::read(pipe[0], &done, 1) == 1) {
    }
    EXPECT_EQ(done, static_cast<char>(packed));
    ASSERT_EQ(::kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFSIGNALED(status));
    ::close(pipe[0]);
  }
};

TEST_F(PullKillTest, PackedShardsAreNotFetchedAgainAndTheStoreIsTheSame) {
  serve_model({}, kShards, test::by_layer);
  server_.change = [](const test::HubRequest& request, test::HubReply& reply) {
    const bool late = request.file >= name(kArriving) && request.file <= name(kShards - 1);
    if (!request.cdn || !late || request.range->second < 65536) return;
    reply.cut = 5000;
    reply.stall = true;
  };
  kill_after(1);
  expect_no_model();
  kill_after(kArriving - 1);
  expect_no_model();
  server_.change = nullptr;
  std::vector<std::uint64_t> before;
  for (std::size_t i = 0; i < kArriving; ++i) before.push_back(content_served(name(i)));
  PullOptions rest = options();
  rest.on_plan = [&](const PullPlan& plan) {
    EXPECT_EQ(plan.needed, kShards - kArriving);
    return Result<void>();
  };
  expect_pulled(rest);
  for (std::size_t i = 0; i < kArriving; ++i) EXPECT_EQ(content_served(name(i)), before[i]) << i;
}

}  // namespace
}  // namespace sluice::pull

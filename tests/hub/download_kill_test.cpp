#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <vector>

#include "hub/download.h"
#include "hub/download_fixture.h"

namespace sluice::hub {
namespace {

constexpr std::uint64_t kRange = 65536;

/// The process that gets killed: this program again, running this test alone.
TEST(DownloadChild, DISABLED_Run) {
  const char* address = std::getenv("HUB_TEST_ENDPOINT");
  const char* folder = std::getenv("HUB_TEST_FOLDER");
  const char* pipe = std::getenv("HUB_TEST_PIPE");
  if (address == nullptr || folder == nullptr || pipe == nullptr) GTEST_SKIP() << "runs as a child only";
  const int fd = std::atoi(pipe);
  test::FakeClock clock;
  DownloadOptions options;
  options.http = test::quick(clock);
  options.workers = 2;
  options.range_bytes = kRange;
  options.progress = [fd](std::uint64_t done, std::uint64_t) {
    if (::write(fd, &done, sizeof done) != sizeof done) std::abort();
  };
  const Endpoint endpoint = *Endpoint::make(address, "");
  HttpClient client(endpoint, options.http);
  const auto repository = Repository::open(endpoint, *parse_repo_name("acme/tiny"), client);
  ASSERT_TRUE(repository.ok());
  const auto got = download_file(*repository, *repository->find("model.bin"), folder, options);
  FAIL() << "was not killed: " << (got.ok() ? "done" : got.error().message);
}

class DownloadKillTest : public test::DownloadFixture {};

TEST_F(DownloadKillTest, AKilledProcessLosesNoByteThatItHad) {
  const std::string content = test::noise(6 * kRange + 77);
  server_.add("model.bin", content);
  // Both workers: one whole range each, then a part of the next, then nothing more.
  server_.change = [](const test::HubRequest& request, test::HubReply& reply) {
    if (!request.cdn || request.range->first < 2 * kRange) return;
    reply.cut = 40000;
    reply.stall = true;
  };
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  ::setenv("HUB_TEST_ENDPOINT", server_.endpoint().c_str(), 1);
  ::setenv("HUB_TEST_FOLDER", folder_.path().c_str(), 1);
  ::setenv("HUB_TEST_PIPE", std::to_string(pipe[1]).c_str(), 1);
  std::string program = std::filesystem::read_symlink("/proc/self/exe");
  std::string filter = "--gtest_filter=DownloadChild.DISABLED_Run";
  std::string disabled = "--gtest_also_run_disabled_tests";
  std::array<char*, 4> arguments = {program.data(), filter.data(), disabled.data(), nullptr};
  pid_t child = 0;
  ASSERT_EQ(::posix_spawn(&child, program.c_str(), nullptr, nullptr, arguments.data(), environ), 0);
  ::close(pipe[1]);
  constexpr std::uint64_t kHad = 2 * kRange + 80000;
  std::uint64_t done = 0;
  while (done < kHad && ::read(pipe[0], &done, sizeof done) == sizeof done) {
  }
  ASSERT_EQ(done, kHad);
  ASSERT_EQ(::kill(child, SIGKILL), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status));
  ::close(pipe[0]);
  EXPECT_EQ(server_.served("model.bin"), kHad);
  EXPECT_FALSE(exists("model.bin"));

  server_.change = nullptr;
  server_.forget_served();
  const auto got = download("model.bin");
  ASSERT_TRUE(got.ok()) << got.error().message;
  EXPECT_EQ(got->resumed, kHad);
  EXPECT_EQ(server_.served("model.bin"), content.size() - kHad);
  EXPECT_EQ(on_disk("model.bin"), content);
  EXPECT_TRUE(clean("model.bin"));
}

}  // namespace
}  // namespace sluice::hub

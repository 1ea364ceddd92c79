// sluice pull as a user meets it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>

#include "base/file.h"
#include "base/json.h"
#include "support/hub_server.h"
#include "support/random_model.h"
#include "support/temp_folder.h"

namespace sluice {
namespace {

namespace fs = std::filesystem;

class PullCommand : public testing::Test {
 protected:
  PullCommand() {
    const fs::path made = folder_ / "made";
    fs::create_directories(made);
    test::RandomModel model;
    model.config = test::tiny_config();
    model.files = 3;
    write_random_model(made, model);
    for (const auto& entry : fs::directory_iterator(made)) {
      const std::string name = entry.path().filename().string();
      server_.add(name, read_text_file(entry.path(), 1 << 30).value(), name.ends_with(".safetensors"));
    }
    ::setenv("HF_ENDPOINT", server_.endpoint().c_str(), 1);
    ::unsetenv("HF_TOKEN");
  }
  /// A running program; its streams go to files.
  pid_t begin(const std::vector<std::string>& arguments) {
    std::vector<std::string> all{SLUICE_BINARY, "pull"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (std::string& argument : all) argv.push_back(argument.data());
    argv.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    const std::string out = folder_ / "out", err = folder_ / "err";
    ::posix_spawn_file_actions_addopen(&actions, 1, out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ::posix_spawn_file_actions_addopen(&actions, 2, err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    pid_t child = 0;
    EXPECT_EQ(::posix_spawn(&child, SLUICE_BINARY, &actions, nullptr, argv.data(), environ), 0);
    ::posix_spawn_file_actions_destroy(&actions);
    return child;
  }
  int end(pid_t child) {
    int status = 0;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    out_ = read_text_file(folder_ / "out", 1 << 20).value();
    err_ = read_text_file(folder_ / "err", 1 << 20).value();
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  int pull(const std::vector<std::string>& arguments) { return end(begin(arguments)); }

  test::TempFolder folder_;
  test::HubServer server_;
  const std::string store_ = folder_ / "tiny.sluice";
  std::string out_, err_;
};

TEST_F(PullCommand, MakesAStoreQuietlyWhenPiped) {
  ASSERT_EQ(pull({"acme/tiny", "--store-dir", folder_.path().string(), "--experts", "4,2", "--json"}), 0)
      << err_;
  EXPECT_EQ(err_, "");
  const auto json = parse_json(out_, "out");
  ASSERT_TRUE(json.ok()) << out_;
  EXPECT_EQ((*json)["store"], store_);
  EXPECT_EQ((*json)["repository"], "acme/tiny");
  EXPECT_EQ((*json)["commit"], test::kCommit);
  EXPECT_EQ((*json)["was_there"], false);
  EXPECT_GT((*json)["downloaded_bytes"].get<std::uint64_t>(), 100000U);
  EXPECT_TRUE(fs::exists(store_ + "/manifest.json"));
  EXPECT_TRUE(fs::exists(store_ + "/experts.q2.bin"));
  EXPECT_FALSE(fs::exists(store_ + "/.pulling"));
  ASSERT_EQ(pull({"acme/tiny@main", "-o", store_, "--experts", "4,2"}), 0) << err_;
  EXPECT_NE(out_.find("there already"), std::string::npos) << out_;
  EXPECT_EQ(pull({"acme/tiny", "-o", store_, "--experts", "3"}), 1);
  EXPECT_NE(err_.find("--force"), std::string::npos) << err_;
}

TEST_F(PullCommand, ExitCodes) {
  EXPECT_EQ(pull({}), 2);
  EXPECT_EQ(pull({"not-a-name"}), 2);
  EXPECT_EQ(pull({"acme/tiny", "--shards-on-disk", "0"}), 2);
  EXPECT_EQ(pull({"acme/tiny", "--workers", "1000"}), 2);
  EXPECT_EQ(pull({"acme/other", "-o", store_}), 1);
  EXPECT_EQ(out_, "");
  EXPECT_EQ(err_.rfind("sluice: acme/other@main: no such repository", 0), 0U) << err_;
  EXPECT_EQ(std::count(err_.begin(), err_.end(), '\n'), 1) << err_;
  EXPECT_FALSE(fs::exists(store_));
}

TEST_F(PullCommand, InterruptedItCanGoOn) {
  std::promise<void> asked;
  std::atomic<bool> once = false;
  server_.change = [&](const test::HubRequest& request, test::HubReply& reply) {
    if (!request.cdn || request.file.find("00002") == std::string::npos) return;
    if (request.range->first == 0 && request.range->second <= 65535) return;
    reply.cut = 1000;
    reply.stall = true;
    if (!once.exchange(true)) asked.set_value();
  };
  const pid_t child = begin({"acme/tiny", "-o", store_});
  ASSERT_GT(child, 0);  // else the signal below would go to everybody
  auto ended = std::async(std::launch::async, [&] {
    const int code = end(child);
    if (!once.exchange(true)) asked.set_value();  // it never asked
    return code;
  });
  asked.get_future().wait();
  EXPECT_EQ(::kill(child, SIGINT), 0);
  EXPECT_EQ(ended.get(), 1);
  EXPECT_NE(err_.find("interrupted; the same command goes on"), std::string::npos) << err_;
  EXPECT_FALSE(fs::exists(store_ + "/manifest.json"));
  server_.change = nullptr;
  EXPECT_EQ(pull({"acme/tiny", "-o", store_}), 0) << err_;
  EXPECT_TRUE(fs::exists(store_ + "/manifest.json"));
}

}  // namespace
}  // namespace sluice

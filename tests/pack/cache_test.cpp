// Checkpoints packed on first use.
#include "pack/cache.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "pack_folder.h"
#include "support/temp_folder.h"

namespace sluice::pack {
namespace {

class Cache : public testing::Test {
 protected:
  void SetUp() override { test::write_source(source_); }
  Result<std::unique_ptr<store::WeightSource>> open(const PackOptions& options = {}) {
    return open_model(source_, cache_, options);
  }
  test::TempFolder folder_;
  const std::filesystem::path source_ = folder_ / "source";
  const std::filesystem::path cache_ = folder_ / "cache";
};

TEST_F(Cache, ACheckpointIsPackedOnceAndFoundAgain) {
  bool packed = false;
  PackOptions options;
  options.on_progress = [&](std::uint64_t, std::uint64_t) { packed = true; };
  const auto first = open(options);
  ASSERT_TRUE(first.ok()) << first.error().message;
  EXPECT_TRUE(packed);
  EXPECT_EQ((*first)->folder(), cached_store(source_, cache_));
  packed = false;
  ASSERT_TRUE(open(options).ok());
  EXPECT_FALSE(packed);
}

TEST_F(Cache, AStoreIsOpenedWhereItLies) {
  ASSERT_TRUE(test::pack_folder(source_, folder_ / "store").ok());
  const auto opened = open_model(folder_ / "store", cache_, {});
  ASSERT_TRUE(opened.ok());
  EXPECT_EQ((*opened)->folder(), folder_ / "store");
  EXPECT_FALSE(std::filesystem::exists(cache_));
}

TEST_F(Cache, AChangedCheckpointIsPackedAnew) {
  ASSERT_TRUE(open().ok());
  test::write_source(source_, test::ModelForm::kReleased, 2);
  const auto changed = open();
  ASSERT_TRUE(changed.ok());
  const auto checkpoint = test::open_folder(source_);
  const auto name = "layers.0.linear_attn.A_log";
  const auto left = (*changed)->read_dense(name);
  const auto right = checkpoint->read_dense(name);
  ASSERT_TRUE(left.ok() && right.ok());
  EXPECT_EQ(std::memcmp(left->buffer.data(), right->buffer.data(), right->buffer.size()), 0);
}

TEST_F(Cache, CheckpointsOfOneNameInDifferentFoldersDoNotMeet) {
  test::write_source(folder_ / "elsewhere" / "source");
  EXPECT_NE(cached_store(source_, cache_), cached_store(folder_ / "elsewhere" / "source", cache_));
  EXPECT_EQ(cached_store(source_, cache_), cached_store(folder_ / "elsewhere" / ".." / "source", cache_));
  EXPECT_EQ(cached_store(source_, cache_), cached_store(source_.string() + "/", cache_));
}

TEST_F(Cache, ProcessesThatComeAtOnceAllGetTheStore) {
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      const auto opened = open();
      if (!opened.ok()) std::fprintf(stderr, "%s\n", opened.error().message.c_str());
      ::_exit(opened.ok() ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  }
  EXPECT_TRUE(store::open_store(cached_store(source_, cache_)).ok());
}

TEST_F(Cache, AnUnusableFolderSaysWhatToDo) {
  const auto opened = open_model(source_, "/proc/sluice", {});
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.error().message.find("--store-dir"), std::string::npos) << opened.error().message;
  EXPECT_NE(opened.error().message.find("--no-pack"), std::string::npos);
}

TEST_F(Cache, TheFolderComesFromTheEnvironment) {
  const auto set = [](const char* name, const char* value) {
    if (value == nullptr) {
      ::unsetenv(name);
    } else {
      ::setenv(name, value, 1);
    }
  };
  const char* before = ::getenv("SLUICE_STORE_DIR");
  const std::string kept = before == nullptr ? "" : before;
  set("SLUICE_STORE_DIR", "/a");
  EXPECT_EQ(default_store_dir(), "/a");
  set("SLUICE_STORE_DIR", nullptr);
  set("XDG_CACHE_HOME", "/b");
  EXPECT_EQ(default_store_dir(), "/b/sluice/stores");
  set("XDG_CACHE_HOME", "relative");  // the specification says to ignore it
  set("HOME", "/c");
  EXPECT_EQ(default_store_dir(), "/c/.cache/sluice/stores");
  set("HOME", nullptr);
  EXPECT_EQ(default_store_dir(), "");
  set("SLUICE_STORE_DIR", kept.c_str());
}

}  // namespace
}  // namespace sluice::pack

// What packing refuses, and what it leaves behind: nothing (faults 51, 56 to 58).
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>

#include "pack_folder.h"
#include "store/safetensors.h"
#include "support/edit_model.h"
#include "support/temp_folder.h"

namespace sluice {
namespace {

using test::fs::path;

class Refusal : public testing::Test {
 protected:
  void SetUp() override { test::write_source(source_); }
  std::string error_of(const path& target, const pack::PackOptions& options = test::all_tiers()) {
    const auto packed = test::pack_folder(source_, target, options);
    return packed.ok() ? "" : packed.error().message;
  }
  test::TempFolder folder_;
  const path source_ = folder_ / "source";
  const path store_ = folder_ / "store";
};

TEST_F(Refusal, AFolderWithOtherThingsInIt) {
  test::fs::create_directories(store_);
  std::ofstream(store_ / "letters.txt") << "mine";
  EXPECT_NE(error_of(store_).find("letters.txt"), std::string::npos);
  EXPECT_EQ(test::contents(store_), (std::map<std::string, std::string>{{"letters.txt", "mine"}}));
  // The source's own folder is such a one.
  const auto before = test::contents(source_);
  EXPECT_NE(error_of(source_), "");
  EXPECT_EQ(test::contents(source_), before);
}

TEST_F(Refusal, AFileInTheFoldersPlace) {
  std::ofstream(store_) << "file";
  EXPECT_NE(error_of(store_).find("not a folder"), std::string::npos);
}

TEST_F(Refusal, AnotherStore) {
  ASSERT_EQ(error_of(store_), "");
  const auto before = test::contents(store_);
  test::write_source(folder_ / "other", test::ModelForm::kMlx);
  const auto packed = test::pack_folder(folder_ / "other", store_);
  ASSERT_FALSE(packed.ok());
  EXPECT_NE(packed.error().message.find("--force"), std::string::npos);
  EXPECT_EQ(test::contents(store_), before);
}

TEST_F(Refusal, ATargetThatCannotBeWritten) {
  const std::string error = error_of("/proc/sluice-store");
  EXPECT_NE(error.find("/proc/sluice-store"), std::string::npos) << error;
}

TEST_F(Refusal, TwoPacksIntoOneFolderAtOnce) {
  pack::PackOptions options = test::all_tiers();
  std::string second;
  int steps = 0;
  options.on_progress = [&](std::uint64_t, std::uint64_t) {
    if (++steps == 5) second = error_of(store_);
  };
  ASSERT_EQ(error_of(store_, options), "");
  EXPECT_NE(second.find("another process is packing into it"), std::string::npos) << second;
  EXPECT_TRUE(store::open_store(store_).ok());
}

TEST_F(Refusal, ASourceCutShort) {
  test::fs::resize_file(source_ / "model-00002-of-00003.safetensors", 1000);
  EXPECT_NE(error_of(store_).find("model-00002-of-00003.safetensors"), std::string::npos);
  EXPECT_FALSE(test::fs::exists(store_));
}

TEST_F(Refusal, ASourceCutShortMidway) {
  pack::PackOptions options = test::all_tiers();
  int steps = 0;
  options.on_progress = [&](std::uint64_t, std::uint64_t) {
    if (++steps == 10) test::fs::resize_file(source_ / "model-00003-of-00003.safetensors", 5000);
  };
  const std::string error = error_of(store_, options);
  EXPECT_NE(error.find("model-00003-of-00003.safetensors"), std::string::npos) << error;
  EXPECT_FALSE(test::fs::exists(store_));
}

TEST_F(Refusal, ASourceWhoseFilesVanishMidway) {
  // Weight files are open and stay readable; what is copied at the end is not.
  pack::PackOptions options = test::all_tiers();
  int steps = 0;
  options.on_progress = [&](std::uint64_t, std::uint64_t) {
    if (++steps == 10) test::fs::remove_all(source_);
  };
  const std::string error = error_of(store_, options);
  EXPECT_NE(error.find("config.json"), std::string::npos) << error;
  EXPECT_FALSE(test::fs::exists(store_));
}

TEST_F(Refusal, WeightsThatAreNoNumbers) {
  test::write_source(folder_ / "nan");
  // bfloat16 NaN as the first weight of an expert.
  for (const char* name : {"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                           "model-00003-of-00003.safetensors"}) {
    const path file = folder_ / "nan" / name;
    const auto opened = store::SafetensorsFile::open(file);
    ASSERT_TRUE(opened.ok());
    for (const auto& [tensor, info] : (*opened)->header().tensors) {
      if (!tensor.ends_with("layers.1.mlp.experts.down_proj")) continue;
      std::fstream stream(file, std::ios::binary | std::ios::in | std::ios::out);
      stream.seekp(static_cast<std::streamoff>(info.offset));
      stream.write("\xff\x7f", 2);
    }
  }
  const auto packed = test::pack_folder(folder_ / "nan", store_);
  ASSERT_FALSE(packed.ok());
  EXPECT_NE(packed.error().message.find("expert 0 of layer 1"), std::string::npos) << packed.error().message;
  EXPECT_NE(packed.error().message.find("nan"), std::string::npos) << packed.error().message;
  EXPECT_FALSE(test::fs::exists(store_));
}

TEST_F(Refusal, PrecisionsThatTheSourceCannotGive) {
  test::write_source(folder_ / "four", test::ModelForm::kMlx);
  pack::PackOptions options;
  options.experts = {spec::Format::kQ8};
  const auto packed = test::pack_folder(folder_ / "four", store_, options);
  ASSERT_FALSE(packed.ok());
  EXPECT_NE(packed.error().message.find("4 bits"), std::string::npos) << packed.error().message;
  EXPECT_FALSE(test::fs::exists(store_));
}

TEST_F(Refusal, AFileTooLargeForItsLimitLeavesNothing) {
  // Stands for every write that fails: a limit on file sizes works without privileges.
  const pid_t child = ::fork();
  if (child == 0) {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{100'000, 100'000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto packed = test::pack_folder(source_, store_);
    const bool named = !packed.ok() && packed.error().message.find(".bin") != std::string::npos;
    ::_exit(named ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_FALSE(test::fs::exists(store_));
}

TEST_F(Refusal, AStoreOfFilesThatChangedSinceIsNotTakenForThere) {
  ASSERT_EQ(error_of(store_), "");
  // The same header and size, other weights.
  const path file = source_ / "model-00002-of-00003.safetensors";
  std::string content = test::contents(source_)["model-00002-of-00003.safetensors"];
  content[content.size() - 5] = static_cast<char>(content[content.size() - 5] ^ 1);
  std::ofstream(file, std::ios::binary | std::ios::trunc) << content;
  EXPECT_NE(error_of(store_).find("changed"), std::string::npos);
  // A time in the past hides nothing.
  test::fs::last_write_time(file, test::fs::file_time_type::clock::now() - std::chrono::hours(1000));
  EXPECT_NE(error_of(store_).find("--force"), std::string::npos);
}

TEST_F(Refusal, ADamagedStoreIsNotTakenForThere) {
  ASSERT_EQ(error_of(store_), "");
  test::fs::remove(store_ / "experts.q3.bin");
  EXPECT_NE(error_of(store_).find("experts.q3.bin"), std::string::npos);
}

TEST_F(Refusal, SomebodyElsesManifestIsNoStore) {
  test::fs::create_directories(store_);
  std::ofstream(store_ / "manifest.json") << R"({"name": "web extension"})";
  const auto before = test::contents(store_);
  pack::PackOptions force = test::all_tiers();
  force.force = true;
  EXPECT_NE(error_of(store_, force).find("manifest.json"), std::string::npos);
  EXPECT_EQ(test::contents(store_), before);
  // Beside weights it does not make a store of a checkpoint.
  std::ofstream(source_ / "manifest.json") << "{}";
  EXPECT_EQ(error_of(folder_ / "other"), "");
}

TEST_F(Refusal, ALinkInTheWorkFoldersPlaceIsNotFollowed) {
  test::fs::create_directories(folder_ / "mine");
  std::ofstream(folder_ / "mine" / "dense.bin") << "mine";
  test::fs::create_directories(store_);
  test::fs::create_directory_symlink(folder_ / "mine", store_ / ".packing");
  EXPECT_NE(error_of(store_).find(".packing"), std::string::npos);
  EXPECT_EQ(test::contents(folder_ / "mine").size(), 1U);
}

TEST_F(Refusal, AnEmptyName) {
  EXPECT_NE(error_of("").find("empty name"), std::string::npos);
}

TEST_F(Refusal, LeftoversDoNotOpenAFolderOfOtherThings) {
  test::fs::create_directories(store_ / ".packing");
  std::ofstream(store_ / "letters.txt") << "mine";
  EXPECT_NE(error_of(store_).find("letters.txt"), std::string::npos);
}

TEST_F(Refusal, AFolderInAFilesPlaceKeepsTheOldStore) {
  ASSERT_EQ(error_of(store_), "");
  test::write_source(folder_ / "new", test::ModelForm::kReleased, 2);
  std::ofstream(folder_ / "new" / "LICENSE") << "text";
  test::fs::create_directories(store_ / "LICENSE");
  pack::PackOptions force = test::all_tiers();
  force.force = true;
  const auto packed = test::pack_folder(folder_ / "new", store_, force);
  ASSERT_FALSE(packed.ok());
  EXPECT_NE(packed.error().message.find("LICENSE"), std::string::npos);
  EXPECT_TRUE(store::open_store(store_).ok());
}

/// Runs `check` in a child with a file system of its own of `size` at `mount`; nullopt where the system does
/// not let us.
template <class Check>
std::optional<int> in_small_disk(const path& mount, const std::string& size, const Check& check) {
  test::fs::create_directories(mount);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) ::_exit(99);
    if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) ::_exit(99);
    if (::mount("tmpfs", mount.c_str(), "tmpfs", 0, ("size=" + size).c_str()) != 0) ::_exit(99);
    ::_exit(check());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (!WIFEXITED(status)) return 1;
  if (WEXITSTATUS(status) == 99) return std::nullopt;
  return WEXITSTATUS(status);
}

TEST_F(Refusal, ADiskTooSmallIsFoundBeforeAnythingIsWritten) {
  const auto code = in_small_disk(folder_ / "disk", "1m", [&] {
    const auto packed = test::pack_folder(source_, folder_ / "disk" / "store");
    if (packed.ok()) return 1;
    if (packed.error().message.find("bytes of disk free") == std::string::npos) return 2;
    return test::fs::is_empty(folder_ / "disk") ? 0 : 3;
  });
  if (!code) GTEST_SKIP() << "file systems cannot be mounted here";
  EXPECT_EQ(*code, 0);
}

TEST_F(Refusal, ADiskThatFillsUpMeanwhile) {
  const auto code = in_small_disk(folder_ / "disk", "64m", [&] {
    // The space is reserved first, so only what is written last can still fail.
    pack::PackOptions options = test::all_tiers();
    bool filled = false;
    options.on_progress = [&](std::uint64_t, std::uint64_t) {
      if (filled) return;
      filled = true;
      std::ofstream hog(folder_ / "disk" / "hog", std::ios::binary);
      const std::string block(1 << 20, 'x');
      while (hog << block << std::flush) {
      }
    };
    const auto packed = test::pack_folder(source_, folder_ / "disk" / "store", options);
    if (packed.ok()) return 1;
    if (packed.error().message.find("No space left") == std::string::npos) return 2;
    return test::fs::exists(folder_ / "disk" / "store") ? 3 : 0;
  });
  if (!code) GTEST_SKIP() << "file systems cannot be mounted here";
  EXPECT_EQ(*code, 0);
}

TEST_F(Refusal, AReadOnlyDisk) {
  const auto code = in_small_disk(folder_ / "disk", "64m", [&] {
    if (::mount("none", (folder_ / "disk").c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr) != 0) return 99;
    const auto packed = test::pack_folder(source_, folder_ / "disk" / "store");
    if (packed.ok()) return 1;
    return packed.error().message.find("Read-only") == std::string::npos ? 2 : 0;
  });
  if (!code) GTEST_SKIP() << "file systems cannot be mounted here";
  EXPECT_EQ(*code, 0);
}

TEST_F(Refusal, AMountPointCanBeTheTarget) {
  const auto code = in_small_disk(folder_ / "disk", "64m", [&] {
    if (!test::pack_folder(source_, folder_ / "disk").ok()) return 1;
    return store::open_store(folder_ / "disk").ok() ? 0 : 2;
  });
  if (!code) GTEST_SKIP() << "file systems cannot be mounted here";
  EXPECT_EQ(*code, 0);
}

}  // namespace
}  // namespace sluice

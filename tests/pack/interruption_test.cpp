// Packing that is killed: the next run ends in the same store, and nothing half-made ever opens (faults 57,
// 58).
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "pack_folder.h"
#include "support/temp_folder.h"

namespace sluice {
namespace {

using test::fs::path;

/// Packs in a child process that is killed at its system call number `kill_at`, before the call is made, or
/// runs to its end. Returns how many calls it made; nullopt where processes cannot be traced.
std::optional<long> pack_until(const path& source, const path& target, long kill_at) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(9);
    ::raise(SIGSTOP);
    ::_exit(test::pack_folder(source, target).ok() ? 0 : 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status)) return std::nullopt;
  ::ptrace(PTRACE_SETOPTIONS, child, nullptr, PTRACE_O_TRACESYSGOOD);
  long calls = 0;
  bool inside = false;
  for (;;) {
    ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    ::waitpid(child, &status, 0);
    if (WIFEXITED(status) || WIFSIGNALED(status)) {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
      return calls;
    }
    if (WSTOPSIG(status) != (SIGTRAP | 0x80)) continue;
    inside = !inside;
    if (!inside || calls++ != kill_at) continue;
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
    return calls;
  }
}

/// The store, if the folder has one that opens.
bool opens(const path& folder) {
  return store::open_store(folder).ok();
}

TEST(Interruption, KilledAtAnySystemCallAndPackedAgainTheStoreIsTheSame) {
  test::TempFolder folder;
  const path source = folder / "source";
  test::write_source(source);
  const auto calls = pack_until(source, folder / "whole", -1);
  if (!calls) GTEST_SKIP() << "processes cannot be traced here";
  const auto wanted = test::contents(folder / "whole");
  ASSERT_TRUE(opens(folder / "whole"));

  std::mt19937 random(7);
  std::vector<long> moments;
  for (int i = 0; i < 20; ++i) moments.push_back(std::uniform_int_distribution<long>(0, *calls - 1)(random));
  // Publishing is few calls at the end: each of them, too.
  for (long back = 1; back <= 60; ++back) moments.push_back(*calls - back);
  for (const long moment : moments) {
    const path target = folder / ("killed" + std::to_string(moment));
    ASSERT_TRUE(pack_until(source, target, moment));
    if (opens(target)) {
      // Only what is complete opens.
      auto found = test::contents(target);
      std::erase_if(found, [](const auto& file) { return file.first.starts_with(".packing/"); });
      EXPECT_EQ(found, wanted) << "killed at call " << moment;
    }
    const auto again = test::pack_folder(source, target);
    ASSERT_TRUE(again.ok()) << "killed at call " << moment << ": " << again.error().message;
    auto found = test::contents(target);
    // A store that was complete is left as it is, with what is left of the workspace.
    if (again->was_there)
      std::erase_if(found, [](const auto& f) { return f.first.starts_with(".packing/"); });
    EXPECT_EQ(found, wanted) << "killed at call " << moment;
    test::fs::remove_all(target);
  }
}

TEST(Interruption, ReplacingAStoreCanBeKilledToo) {
  test::TempFolder folder;
  const path old_source = folder / "old";
  const path new_source = folder / "new";
  test::write_source(old_source, test::ModelForm::kReleased, 1);
  test::write_source(new_source, test::ModelForm::kReleased, 2);
  ASSERT_TRUE(test::pack_folder(new_source, folder / "wanted").ok());
  ASSERT_TRUE(test::pack_folder(old_source, folder / "before").ok());
  const auto before = test::contents(folder / "before");
  const auto wanted = test::contents(folder / "wanted");
  pack::PackOptions force = test::all_tiers();
  force.force = true;
  for (long k = 0; k < 40; ++k) {
    const path target = folder / "target";
    test::fs::remove_all(target);
    test::fs::copy(folder / "before", target, test::fs::copy_options::recursive);
    // The child dies when it has written so many files' worth of progress.
    const pid_t child = ::fork();
    if (child == 0) {
      long left = k * 3;
      pack::PackOptions options = force;
      options.on_progress = [&](std::uint64_t, std::uint64_t) {
        if (left-- == 0) ::raise(SIGKILL);
      };
      ::_exit(test::pack_folder(new_source, target, options).ok() ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) {
      // The old store is whole until the new one is.
      auto found = test::contents(target);
      std::erase_if(found, [](const auto& file) { return file.first.starts_with(".packing/"); });
      EXPECT_EQ(found, before) << k;
    }
    ASSERT_TRUE(test::pack_folder(new_source, target, force).ok()) << k;
    EXPECT_EQ(test::contents(target), wanted) << k;
  }
}

TEST(Interruption, WhatWasDoneIsNotDoneAgain) {
  test::TempFolder folder;
  const path source = folder / "source";
  test::write_source(source);
  // Stopped after some of the work, which stays.
  pack::PackOptions options = test::all_tiers();
  options.keep_on_error = true;
  int steps = 0;
  options.cancelled = [&] { return ++steps == 60; };
  ASSERT_FALSE(test::pack_folder(source, folder / "store", options).ok());
  EXPECT_FALSE(opens(folder / "store"));
  const auto again = test::pack_folder(source, folder / "store");
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_GT(again->resumed, 0U);
  ASSERT_TRUE(test::pack_folder(source, folder / "whole").ok());
  EXPECT_EQ(test::contents(folder / "store"), test::contents(folder / "whole"));
}

TEST(Interruption, AJournalWhoseFilesAreGoneIsNotBelieved) {
  test::TempFolder folder;
  const path source = folder / "source";
  test::write_source(source);
  for (const char* name : {"dense.bin", "experts.q4.bin", "ngram.bin"}) {
    for (const bool cut : {false, true}) {
      const path target = folder / "store";
      pack::PackOptions options = test::all_tiers();
      options.keep_on_error = true;
      int steps = 0;
      options.cancelled = [&] { return ++steps == 60; };
      ASSERT_FALSE(test::pack_folder(source, target, options).ok());
      const path file = target / ".packing" / name;
      if (cut) {
        test::fs::resize_file(file, 0);
      } else {
        test::fs::remove(file);
      }
      ASSERT_TRUE(test::pack_folder(source, target).ok());
      ASSERT_TRUE(test::pack_folder(source, folder / "whole").ok());
      EXPECT_EQ(test::contents(target), test::contents(folder / "whole")) << name;
      test::fs::remove_all(target);
    }
  }
}

}  // namespace
}  // namespace sluice

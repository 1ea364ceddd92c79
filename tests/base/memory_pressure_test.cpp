#include "base/memory_pressure.h"

#include <gtest/gtest.h>

#include "support/temp_folder.h"

namespace sluice {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

TEST(MemoryPressure, StallsAreReadFromTheGroupBeforeTheMachine) {
  test::TempFolder root;
  const auto file = [&](const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root / path).parent_path());
    root.write(path, text);
  };
  EXPECT_EQ(memory_stall(root.path()), std::nullopt);
  file("proc/pressure/memory",
       "some avg10=5.00 avg60=0.00 avg300=0.00 total=1\nfull avg10=2.50 avg60=0.00\n");
  EXPECT_EQ(memory_stall(root.path()), 2.5);
  file("proc/self/cgroup", "0::/user/sluice\n");
  file("sys/fs/cgroup/cgroup.controllers", "memory\n");
  EXPECT_EQ(memory_stall(root.path()), 2.5);
  file("sys/fs/cgroup/user/sluice/memory.pressure", "some avg10=90.00\nfull avg10=40.00 avg60=1.00\n");
  EXPECT_EQ(memory_stall(root.path()), 40);
}

TEST(MemoryPressure, WhatIsNoNumberIsNoStall) {
  for (const char* text : {"", "full", "full avg10=", "full avg10=x", "full avg10=-1", "full avg10=nan"}) {
    EXPECT_EQ(parse_stall(text), std::nullopt) << text;
  }
}

TEST(MemoryPressure, NothingIsGivenBackWhileHalfTheReserveIsThere) {
  EXPECT_EQ(bytes_to_give_back(600 * kMiB, 1000 * kMiB, 4000 * kMiB, 0.0), 0U);
  EXPECT_EQ(bytes_to_give_back(400 * kMiB, 1000 * kMiB, 4000 * kMiB, std::nullopt), 600 * kMiB);
  EXPECT_EQ(bytes_to_give_back(0, 1000 * kMiB, 300 * kMiB, 0.0), 300 * kMiB);  // no more than is held
  // Standing still counts whatever seems available.
  EXPECT_EQ(bytes_to_give_back(9000 * kMiB, 1000 * kMiB, 3200 * kMiB, 25.0), 200 * kMiB);
  EXPECT_EQ(bytes_to_give_back(9000 * kMiB, 1000 * kMiB, 3200 * kMiB, 9.0), 0U);
}

}  // namespace
}  // namespace sluice

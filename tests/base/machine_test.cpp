// What the machine and its control groups have, from files as kernels write them.
#include "base/machine.h"

#include <gtest/gtest.h>

#include "base/threads.h"
#include "support/temp_folder.h"

namespace sluice {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;

/// A root folder with the files of /proc and /sys that matter.
class GroupTest : public testing::Test {
 protected:
  void file(const std::string& path, const std::string& content) {
    std::filesystem::create_directories((root_ / path).parent_path());
    root_.write(path, content);
  }
  void version2(const std::string& group, const std::string& limit, const std::string& current,
                const std::string& stat = "anon 1\n") {
    const std::string base = "sys/fs/cgroup/" + group;
    file(base + "/memory.max", limit + "\n");
    file(base + "/memory.current", current + "\n");
    file(base + "/memory.stat", stat);
  }
  [[nodiscard]] std::optional<GroupMemory> read() const { return read_group_memory(root_.path()); }
  test::TempFolder root_;
};

TEST(MemoryInfo, ReadsWhatTheKernelWrites) {
  const auto info = parse_meminfo(
      "MemTotal:       24684084 kB\nMemFree:        19130892 kB\nMemAvailable:   23300072 kB\n"
      "Buffers:           16332 kB\nCached:          4264988 kB\nSwapCached:            0 kB\n"
      "SwapTotal:       2097148 kB\nSwapFree:        1000000 kB\nHugePages_Total:       0\n");
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->total, 24684084ULL * 1024);
  EXPECT_EQ(info->available, 23300072ULL * 1024);
  EXPECT_EQ(info->swap_total, 2097148ULL * 1024);
  EXPECT_EQ(info->swap_free, 1000000ULL * 1024);
}

TEST(MemoryInfo, OldKernelsAndOddFiles) {
  const auto old = parse_meminfo("MemTotal: 1000 kB\nMemFree: 100 kB\nBuffers: 20 kB\nCached: 300 kB\n");
  ASSERT_TRUE(old.ok());
  EXPECT_EQ(old->available, 420U * 1024);
  EXPECT_EQ(parse_meminfo("MemTotal: 10 kB\nMemAvailable: 50 kB")->available, 10U * 1024);
  EXPECT_FALSE(parse_meminfo("").ok());
  EXPECT_FALSE(parse_meminfo("MemTotal: many kB\n").ok());
  EXPECT_FALSE(parse_meminfo("MemTotal: 99999999999999999999999 kB\nno colon\n:\n").ok());
}

TEST_F(GroupTest, NoFilesAreNoLimit) {
  EXPECT_FALSE(read());
  file("proc/self/cgroup", "0::/\n");
  EXPECT_FALSE(read());
}

TEST_F(GroupTest, Version2LimitAndUse) {
  file("proc/self/cgroup", "0::/work.slice/job\n");
  file("sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
  version2("work.slice/job", std::to_string(4 * kGiB), std::to_string(3 * kGiB),
           "anon 1\nfile 9\ninactive_file 1073741824\nactive_file 536870912\ninactive_file_x 7\n");
  const auto group = read();
  ASSERT_TRUE(group);
  EXPECT_EQ(group->limit, 4 * kGiB);
  EXPECT_EQ(group->room, 4 * kGiB - 3 * kGiB / 2);  // page cache is given back
}

TEST_F(GroupTest, MaxIsNoLimitButHighIsOne) {
  file("proc/self/cgroup", "0::/a\n");
  file("sys/fs/cgroup/cgroup.controllers", "memory\n");
  version2("a", "max", "1000");
  EXPECT_FALSE(read());
  file("sys/fs/cgroup/a/memory.high", "5000\n");
  EXPECT_EQ(read()->limit, 5000U);
  EXPECT_EQ(read()->room, 4000U);
}

TEST_F(GroupTest, TheSmallestLimitAndTheSmallestRoomOfNestedGroups) {
  file("proc/self/cgroup", "0::/outer/middle/inner\n");
  file("sys/fs/cgroup/cgroup.controllers", "memory\n");
  version2("outer", "8000", "7500");
  version2("outer/middle", "6000", "1000");
  version2("outer/middle/inner", "max", "900");
  const auto group = read();
  ASSERT_TRUE(group);
  EXPECT_EQ(group->limit, 6000U);
  EXPECT_EQ(group->room, 500U);
}

TEST_F(GroupTest, UseBeyondTheLimitLeavesNoRoom) {
  file("proc/self/cgroup", "0::/a\n");
  file("sys/fs/cgroup/cgroup.controllers", "memory\n");
  version2("a", "1000", "1500");
  EXPECT_EQ(read()->room, 0U);
}

TEST_F(GroupTest, AContainerSeesItsOwnGroupAtTheRootWhateverItsPath) {
  file("proc/self/cgroup", "0::/kubepods/burstable/pod1\n");
  file("sys/fs/cgroup/cgroup.controllers", "memory\n");
  version2(".", "7000", "100");
  EXPECT_EQ(read()->limit, 7000U);
  file("proc/self/cgroup", "0::/../../other\n");
  EXPECT_EQ(read()->limit, 7000U);
}

TEST_F(GroupTest, Version1) {
  file("proc/self/cgroup", "11:cpu,cpuacct:/x\n4:memory:/docker/abc\n1:name=systemd:/y\n0::/\n");
  const std::string base = "sys/fs/cgroup/memory/";
  file(base + "memory.limit_in_bytes", "9223372036854771712\n");
  file(base + "memory.usage_in_bytes", "123456\n");
  file(base + "docker/memory.limit_in_bytes", "9223372036854771712\n");
  file(base + "docker/abc/memory.limit_in_bytes", "2000000\n");
  file(base + "docker/abc/memory.usage_in_bytes", "900000\n");
  file(base + "docker/abc/memory.stat",
       "inactive_file 1\ntotal_inactive_file 300000\ntotal_active_file 100000\n");
  const auto group = read();
  ASSERT_TRUE(group);
  EXPECT_EQ(group->limit, 2000000U);
  EXPECT_EQ(group->room, 1500000U);
}

TEST_F(GroupTest, Version1WithoutAnyLimit) {
  file("proc/self/cgroup", "4:memory:/\n");
  file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_FALSE(read());
}

TEST(Machine, TheTighterOfMachineAndGroupCounts) {
  Machine machine;
  machine.memory = {.total = 100, .available = 60};
  EXPECT_EQ(machine.available(), 60U);
  EXPECT_EQ(machine.total(), 100U);
  machine.group = GroupMemory{.limit = 80, .room = 70};
  EXPECT_EQ(machine.available(), 60U);
  EXPECT_EQ(machine.total(), 80U);
  machine.group = GroupMemory{.limit = 80, .room = 10};
  EXPECT_EQ(machine.available(), 10U);
}

TEST(Machine, ThisOneHasMemoryAndCores) {
  const auto machine = read_machine();
  ASSERT_TRUE(machine.ok()) << machine.error().message;
  EXPECT_GT(machine->available(), 0U);
  EXPECT_LE(machine->available(), machine->total());
  EXPECT_EQ(machine->cores, ThreadTeam::default_size());
}

}  // namespace
}  // namespace sluice

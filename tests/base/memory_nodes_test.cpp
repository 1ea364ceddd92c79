#include "base/memory_nodes.h"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/buffer.h"

namespace sluice {
namespace {

TEST(MemoryNodes, ListsAreReadAsLinuxWritesThem) {
  EXPECT_EQ(parse_node_list("0\n"), std::vector<int>{0});
  EXPECT_EQ(parse_node_list("0-3"), (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(parse_node_list("0-1,4,6-7\n"), (std::vector<int>{0, 1, 4, 6, 7}));
  for (const char* bad : {"", "\n", "x", "0-", "-1", "3-1", "0,", "0 1", "0-99999", "1024", "99999999999"}) {
    EXPECT_FALSE(parse_node_list(bad).has_value()) << bad;
  }
}

TEST(MemoryNodes, ThisMachineHasSome) {
  ASSERT_FALSE(memory_nodes().empty());
  EXPECT_GE(memory_nodes().front(), 0);
}

TEST(MemoryNodes, PagesAreInterleavedWhereTheSystemHasNodes) {
  auto buffer = AlignedBuffer::create(std::size_t{32} << 20, 4096);
  ASSERT_TRUE(buffer.ok());
  const bool done = interleave(buffer->bytes(), memory_nodes());
  int policy = -1;
  const bool told = ::syscall(SYS_get_mempolicy, &policy, nullptr, 0UL, buffer->data(), MPOL_F_ADDR) == 0;
  EXPECT_EQ(done, told);  // the system has both calls or none
  if (told) {
    EXPECT_EQ(policy, MPOL_INTERLEAVE);
  }
  EXPECT_FALSE(interleave(buffer->bytes(), {100000}));
  // The memory is what it was: zero, and ours to write.
  EXPECT_EQ(buffer->bytes()[12345], std::byte{0});
  buffer->bytes()[12345] = std::byte{7};
  EXPECT_EQ(buffer->bytes()[12345], std::byte{7});
  spread_over_nodes(buffer->bytes());
}

}  // namespace
}  // namespace sluice

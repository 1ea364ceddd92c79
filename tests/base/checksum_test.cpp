#include "base/checksum.h"

#include <gtest/gtest.h>
// The plain entries: ours may be the processor's own.
#include <xxhash.h>

#include <algorithm>
#include <thread>
#include <vector>

namespace sluice {
namespace {

std::vector<std::byte> bytes_of(std::size_t count) {
  std::vector<std::byte> bytes(count);
  std::uint32_t state = 12345;
  for (std::byte& byte : bytes) {
    state = state * 1664525U + 1013904223U;
    byte = static_cast<std::byte>(state >> 24);
  }
  return bytes;
}

TEST(Checksum, IsXxh3WhateverTheProcessor) {
  const std::vector<std::byte> bytes = bytes_of(1 << 17);
  EXPECT_EQ(checksum_text(checksum({})), "2d06800538d394c2");  // of nothing, as xxHash documents it
  for (const std::uint64_t seed : {std::uint64_t{0}, std::uint64_t{0x9e3779b97f4a7c15}}) {
    for (const std::size_t offset : {0, 1, 7, 32, 63}) {
      for (const std::size_t size : {1, 16, 128, 240, 241, 255, 1023, 1024, 1025, 4096, 65537, 131000}) {
        EXPECT_EQ(checksum(std::span(bytes).subspan(offset, size), seed),
                  XXH3_64bits_withSeed(bytes.data() + offset, size, seed))
            << size << " bytes at " << offset;
      }
    }
  }
}

TEST(Checksum, OfPartsIsThatOfTheWhole) {
  const std::vector<std::byte> bytes = bytes_of(300000);
  for (const std::size_t part : {1, 63, 64, 255, 256, 257, 1024, 4095, 100000}) {
    Checksum sum(7);
    for (std::size_t at = 0; at < bytes.size(); at += part) {
      sum.add(std::span(bytes).subspan(at, std::min(part, bytes.size() - at)));
    }
    EXPECT_EQ(sum.value(), checksum(bytes, 7)) << part;
  }
}

TEST(Checksum, OneChangedBitChangesIt) {
  std::vector<std::byte> bytes = bytes_of(70000);
  const std::uint64_t whole = checksum(bytes);
  for (const std::size_t at : {std::size_t{0}, std::size_t{4095}, std::size_t{40000}, bytes.size() - 1}) {
    bytes[at] ^= std::byte{4};
    EXPECT_NE(checksum(bytes), whole) << at;
    bytes[at] ^= std::byte{4};
  }
}

TEST(Checksum, ThreadsMayBeginAtOnce) {
  const std::vector<std::byte> bytes = bytes_of(5000);
  std::vector<std::uint64_t> sums(4);
  std::vector<std::thread> threads;
  for (std::uint64_t& sum : sums) threads.emplace_back([&] { sum = checksum(bytes); });
  for (std::thread& thread : threads) thread.join();
  for (const std::uint64_t sum : sums) EXPECT_EQ(sum, XXH3_64bits(bytes.data(), bytes.size()));
}

TEST(Checksum, TextGoesBothWays) {
  EXPECT_EQ(checksum_text(0x1fU), "000000000000001f");
  EXPECT_EQ(parse_checksum("000000000000001f"), 0x1fU);
  for (const char* bad : {"", "1f", "000000000000001g", "000000000000001f0", " 00000000000001f"}) {
    EXPECT_FALSE(parse_checksum(bad).has_value()) << bad;
  }
}

}  // namespace
}  // namespace sluice

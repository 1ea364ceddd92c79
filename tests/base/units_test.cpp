#include "base/units.h"

#include <gtest/gtest.h>

namespace sluice {
namespace {

TEST(Units, SizesAreReadAsPeopleWriteThem) {
  EXPECT_EQ(parse_size("4096").value(), 4096U);
  EXPECT_EQ(parse_size("32G").value(), std::uint64_t{32} << 30);
  EXPECT_EQ(parse_size("1.5 GiB").value(), std::uint64_t{3} << 29);
  EXPECT_EQ(parse_size("2GB").value(), 2000000000U);
  EXPECT_EQ(parse_size("7k").value(), 7168U);
}

TEST(Units, NonsenseIsAnErrorThatQuotesIt) {
  for (const char* text : {"", "G", "12X", "-3G", "1e400", "nan", "3GG", "99999999999T"}) {
    const auto size = parse_size(text);
    ASSERT_FALSE(size.ok()) << text;
    EXPECT_NE(size.error().message.find(text), std::string::npos);
  }
}

TEST(Units, SizesAreWrittenShort) {
  EXPECT_EQ(format_size(17), "17 B");
  EXPECT_EQ(format_size(1536), "1.50 KiB");
  EXPECT_EQ(format_size(std::uint64_t{24} << 30), "24.0 GiB");
  EXPECT_EQ(format_count(28100000), "28.1M");
  EXPECT_EQ(format_count(640), "640");
}

}  // namespace
}  // namespace sluice

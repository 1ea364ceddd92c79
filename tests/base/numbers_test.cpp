#include "base/numbers.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sluice {
namespace {

TEST(Numbers, EveryHalfSurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Half half{static_cast<std::uint16_t>(bits)};
    const float value = to_float(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(to_float(to_half(value))));
    } else {
      EXPECT_EQ(to_half(value).bits, bits);
    }
  }
}

TEST(Numbers, EveryBfloat16SurvivesTheRoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const BFloat16 b{static_cast<std::uint16_t>(bits)};
    if (std::isnan(to_float(b))) {
      EXPECT_TRUE(std::isnan(to_float(to_bfloat16(to_float(b)))));
    } else {
      EXPECT_EQ(to_bfloat16(to_float(b)).bits, bits);
    }
  }
}

TEST(Numbers, RoundingIsToNearestEven) {
  EXPECT_EQ(to_half(2049.0F).bits, to_half(2048.0F).bits);  // halfway, even below
  EXPECT_EQ(to_half(2051.0F).bits, to_half(2052.0F).bits);  // halfway, even above
  EXPECT_EQ(to_half(65520.0F).bits, 0x7c00);                // rounds past the largest half
  EXPECT_EQ(to_half(65519.0F).bits, 0x7bff);
  EXPECT_EQ(to_half(0x1p-25F).bits, 0);  // halfway to the smallest subnormal, even is 0
  EXPECT_EQ(to_half(0x1.8p-25F).bits, 1);
  EXPECT_EQ(to_bfloat16(1.00390625F).bits, 0x3f80);  // halfway between 1 and 1.0078125
  EXPECT_EQ(to_bfloat16(-0.0F).bits, 0x8000);
}

TEST(Numbers, E4m3HasTheKnownPoints) {
  EXPECT_EQ(e4m3_to_float(0x7e), 448.0F);
  EXPECT_EQ(e4m3_to_float(0xfe), -448.0F);
  EXPECT_EQ(e4m3_to_float(0x38), 1.0F);
  EXPECT_EQ(e4m3_to_float(0x01), 0x1p-9F);
  EXPECT_EQ(e4m3_to_float(0x08), 0x1p-6F);
  EXPECT_TRUE(std::isnan(e4m3_to_float(0x7f)));
  EXPECT_TRUE(std::isnan(e4m3_to_float(0xff)));
}

}  // namespace
}  // namespace sluice

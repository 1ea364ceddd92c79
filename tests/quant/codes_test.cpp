// How codes lie in memory, and dropping their bits.
#include "quant/codes.h"

#include "quant/reference.h"

namespace sluice::quant {
namespace {

std::vector<std::uint8_t> random_codes(std::size_t count, unsigned below, unsigned seed) {
  std::mt19937 engine(seed);
  std::vector<std::uint8_t> codes(count);
  for (auto& code : codes) code = static_cast<std::uint8_t>(engine() % below);
  return codes;
}

std::vector<std::byte> packed(Format format, const std::vector<std::uint8_t>& codes) {
  std::vector<std::byte> out(packed_bytes(format, codes.size()));
  pack_codes(format, codes, out);
  return out;
}

TEST(Codes, LieWhereTheLayoutSaysAndReadBack) {
  for (const Format format : kQuantised) {
    for (const std::size_t count : {0U, 32U, 64U, 96U, 416U}) {
      const auto codes = random_codes(count, 1U << spec::bits_of(format), 3);
      const auto row = packed(format, codes);
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(reference_code(format, row, i), codes[i]) << format_name(format) << " code " << i;
      }
      std::vector<std::uint8_t> back(count, 99);
      unpack_codes(format, row, back);
      EXPECT_EQ(back, codes) << format_name(format);
    }
  }
}

TEST(Codes, BitsAboveTheFormatsAreDropped) {
  const auto wide = random_codes(96, 256, 4);
  for (const Format format : kQuantised) {
    auto narrow = wide;
    for (auto& code : narrow) code &= static_cast<std::uint8_t>((1U << spec::bits_of(format)) - 1);
    EXPECT_EQ(packed(format, wide), packed(format, narrow)) << format_name(format);
  }
}

TEST(Codes, TruncatingPackedCodesIsTruncatingEachAndPacking) {
  for (const std::size_t count : {0U, 32U, 64U, 352U}) {
    const auto codes = random_codes(count, 16, 5);
    const auto q4 = packed(Format::kQ4, codes);
    for (const Format low : {Format::kQ3, Format::kQ2}) {
      auto truncated = codes;
      for (auto& code : truncated) code = truncate_code(low, code);
      std::vector<std::byte> out(packed_bytes(low, count));
      truncate_codes(low, q4, out);
      EXPECT_EQ(out, packed(low, truncated)) << format_name(low);
    }
  }
}

TEST(Codes, ACodeLosesItsLowestBits) {
  EXPECT_EQ(truncate_code(Format::kQ4, 13), 13);
  EXPECT_EQ(truncate_code(Format::kQ3, 13), 6);
  EXPECT_EQ(truncate_code(Format::kQ2, 13), 3);
}

}  // namespace
}  // namespace sluice::quant

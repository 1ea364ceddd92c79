// Weight formats: how codes lie, what they stand for, and projections in every format.
#include "backend/scalar/weights.h"

#include "backend/on_backend.h"

namespace sluice::backend {
namespace {

TEST(Codes, PackedCodesReadBack) {
  Numbers numbers(1);
  for (const Format format : {Format::kQ4, Format::kQ8, Format::kQ3, Format::kQ2}) {
    std::vector<std::uint8_t> codes(160);
    for (auto& code : codes) code = static_cast<std::uint8_t>(numbers.below(1U << bits_of(format)));
    std::vector<std::byte> packed(codes.size() * static_cast<std::size_t>(bits_of(format)) / 8);
    quant::pack_codes(format, codes, packed);
    for (std::size_t i = 0; i < codes.size(); ++i) {
      EXPECT_EQ(scalar::code_at(format, packed.data(), static_cast<std::int64_t>(i)), codes[i]) << i;
    }
  }
}

// One code set at a time, against the bit positions of operations.md written out as words.
TEST(Codes, LowBitCodesLieWhereTheLayoutSays) {
  for (std::uint32_t c = 0; c < 32; ++c) {
    const std::uint32_t t = c / 16;
    const std::uint32_t r = c % 16;
    const std::uint32_t i = r / 2;
    const std::uint32_t p = i / 4 + (r % 2 == 1 ? 2U : 0U);
    const std::uint32_t byte = i % 4;
    std::uint32_t words[3] = {0, 0, 0};
    words[t] = 3U << (8 * byte + 2 * p);
    const auto* row = reinterpret_cast<const std::byte*>(words);
    for (std::uint32_t other = 0; other < 32; ++other) {
      EXPECT_EQ(scalar::code_at(Format::kQ2, row, other), other == c ? 3U : 0U);
    }
    words[2] = 1U << (8 * byte + 4 * t + p);
    for (std::uint32_t other = 0; other < 32; ++other) {
      EXPECT_EQ(scalar::code_at(Format::kQ3, row, other), other == c ? 7U : 0U);
    }
  }
}

TEST(Codes, LowBitValuesAreTheMidpointsOfTheFourBitCodesTheyCover) {
  const float scale = 0.25F;
  const float bias = -2;
  const auto four = [&](std::uint32_t q) { return scalar::code_value(Format::kQ4, q, scale, bias); };
  for (std::uint32_t q = 0; q < 8; ++q) {
    EXPECT_EQ(scalar::code_value(Format::kQ3, q, scale, bias), (four(2 * q) + four(2 * q + 1)) / 2);
  }
  for (std::uint32_t q = 0; q < 4; ++q) {
    EXPECT_EQ(scalar::code_value(Format::kQ2, q, scale, bias), (four(4 * q) + four(4 * q + 3)) / 2);
  }
}

class Projection : public OnBackend {};

struct Case {
  std::int64_t out, in;
  int group;
};
constexpr Case kCases[] = {{7, 64, 64},   {5, 96, 32},    {33, 192, 96},
                           {4, 256, 128}, {130, 320, 64}, {1, 32, 32}};

TEST_P(Projection, LinearMatchesTheValuesOfEveryFormat) {
  Numbers numbers(2);
  for (const Format format : kEveryFormat) {
    for (const Case& c : kCases) {
      const HostMatrix m = random_matrix(numbers, format, c.out, c.in, c.group);
      const std::int64_t rows = 3;
      const auto x = numbers.floats(rows * c.in);
      std::vector<float> expected;
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t o = 0; o < c.out; ++o) {
          double sum = 0;
          for (std::int64_t i = 0; i < c.in; ++i) {
            sum += static_cast<double>(m.values[static_cast<std::size_t>(o * c.in + i)]) *
                   x[static_cast<std::size_t>(r * c.in + i)];
          }
          expected.push_back(static_cast<float>(sum));
        }
      }
      const auto y = memory<float>(rows * c.out);
      backend().linear(upload(m), upload(x), rows, y);
      EXPECT_LT(relative_l2(download(y, rows * c.out), expected), rounded(2e-6))
          << bits_of(format) << " bits, " << c.out << " x " << c.in << " by " << c.group;
      backend().linear_silu(upload(m), upload(x), rows, 4, y);
      for (float& v : expected) v = v / 4 / (1 + std::exp(-v / 4));
      EXPECT_LT(relative_l2(download(y, rows * c.out), expected), rounded(4e-6));
    }
  }
}

// Numbers of rows on both sides of every place where a backend may change its way, and an input longer than
// one block of it.
TEST_P(Projection, ARowsBitsDoNotDependOnTheRowsBesideIt) {
  Numbers numbers(3);
  for (const std::int64_t in : {192, 1056}) {
    for (const Format format : kEveryFormat) {
      const std::int64_t out = 21;
      const std::int64_t most = 130;
      const Matrix w = upload(random_matrix(numbers, format, out, in, 32));
      const auto x = upload(numbers.floats(most * in));
      const auto y = memory<float>(most * out);
      std::vector<float> alone;
      std::vector<float> alone_silu;
      for (std::int64_t r = 0; r < most; ++r) {
        backend().linear(w, x + r * in, 1, y);
        const auto row = download(y, out);
        alone.insert(alone.end(), row.begin(), row.end());
        backend().linear_silu(w, x + r * in, 1, 4, y);
        const auto silu = download(y, out);
        alone_silu.insert(alone_silu.end(), silu.begin(), silu.end());
      }
      for (const std::int64_t rows :
           {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17, 31, 33, 59, 60, 61, 64, 130}) {
        const auto first = static_cast<std::size_t>(rows * out);
        backend().linear(w, x, rows, y);
        EXPECT_EQ(bits_of_values(download(y, rows * out)), bits_of_values(std::span(alone).first(first)))
            << bits_of(format) << " bits, " << rows << " rows";
        backend().linear_silu(w, x, rows, 4, y);
        EXPECT_EQ(bits_of_values(download(y, rows * out)), bits_of_values(std::span(alone_silu).first(first)))
            << bits_of(format) << " bits, " << rows << " rows";
      }
    }
  }
}

TEST_P(Projection, ANanRowStaysAlone) {
  Numbers numbers(4);
  for (const Format format : kEveryFormat) {
    const Matrix w = upload(random_matrix(numbers, format, 9, 64, 64));
    auto values = numbers.floats(3 * 64);
    const auto y = memory<float>(3 * 9);
    backend().linear(w, upload(values), 3, y);
    const auto clean = download(y, 3 * 9);
    for (std::size_t i = 64; i < 128; ++i) values[i] = NAN;
    backend().linear(w, upload(values), 3, y);
    const auto found = download(y, 3 * 9);
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (i / 9 == 1) {
        EXPECT_TRUE(std::isnan(found[i]));
      } else {
        EXPECT_EQ(found[i], clean[i]);
      }
    }
  }
}

// The sum q s + b is the only rounding, so that every backend has the same bits.
TEST_P(Projection, EmbeddedRowsAreTheValuesBitForBit) {
  Numbers numbers(5);
  for (const Format format : kEveryFormat) {
    for (const int group : {32, 64}) {
      const HostMatrix m = random_matrix(numbers, format, 11, 192, group);
      const std::vector<std::int32_t> ids{10, 0, 3, 3};
      std::vector<float> expected;
      for (const std::int32_t id : ids) {
        const auto row = m.values.begin() + std::int64_t{id} * 192;
        expected.insert(expected.end(), row, row + 192);
      }
      const auto out = memory<float>(4 * 192);
      backend().embed_rows(upload(m), upload(ids), 4, out);
      EXPECT_EQ(bits_of_values(download(out, 4 * 192)), bits_of_values(expected)) << bits_of(format);
    }
  }
}

SLUICE_ON_EVERY_BACKEND(Projection);

}  // namespace
}  // namespace sluice::backend

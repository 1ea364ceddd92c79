// Whole matrices: layouts, threads, errors.
#include "quant/matrix.h"

#include <cstring>

#include "quant/reference.h"

namespace sluice::quant {
namespace {

/// Memory for a matrix.
struct Stored {
  explicit Stored(const MatrixShape& shape)
      : data(static_cast<std::size_t>(shape.data_bytes())),
        scales(static_cast<std::size_t>(shape.scale_bytes())),
        biases(scales.size()) {}
  MutableMatrixParts parts() { return {data, scales, biases}; }
  bool operator==(const Stored&) const = default;
  std::vector<std::byte> data, scales, biases;
};

float bfloat16_at(const std::vector<std::byte>& from, std::size_t i) {
  BFloat16 value;
  std::memcpy(&value.bits, from.data() + 2 * i, 2);
  return to_float(value);
}

std::vector<float> dequantised(const MatrixShape& shape, Stored& stored) {
  std::vector<float> out(static_cast<std::size_t>(shape.rows * shape.in));
  const auto done = dequantise_rows(shape, stored.parts(), 0, out);
  EXPECT_TRUE(done.ok()) << done.error().message;
  return out;
}

TEST(Matrix, RowsAreFittedAndPackedOneAfterTheOther) {
  for (const Format format : kQuantised) {
    for (const int group : {32, 64, 128}) {
      const MatrixShape shape{format, 5, 384, group};
      const auto values = random_values(Kind::kNormal, 5 * 384, 1);
      const auto importance = random_importance(384, 2);
      Stored stored(shape);
      const auto error = quantise_matrix(shape, values, importance, stored.parts());
      ASSERT_TRUE(error.ok()) << error.error().message;
      double sum = 0;
      std::vector<float> expected;
      for (std::size_t row = 0; row < 5; ++row) {
        const Fitted fitted =
            fit(format, group, std::vector<float>(&values[384 * row], &values[384 * row] + 384), importance);
        sum += fitted.error;
        const auto bytes = static_cast<std::size_t>(shape.row_bytes());
        const std::span codes(stored.data.data() + row * bytes, bytes);
        for (std::size_t i = 0; i < 384; ++i) {
          ASSERT_EQ(reference_code(format, codes, i), fitted.codes[i]);
          const std::size_t g = i / static_cast<std::size_t>(group);
          const std::size_t at = row * fitted.scales.size() + g;
          ASSERT_EQ(bfloat16_at(stored.scales, at), to_float(BFloat16{fitted.scales[g]}));
          ASSERT_EQ(bfloat16_at(stored.biases, at), to_float(BFloat16{fitted.biases[g]}));
        }
        const auto one = values_of(format, group, fitted);
        expected.insert(expected.end(), one.begin(), one.end());
      }
      EXPECT_EQ(*error, sum);
      EXPECT_EQ(dequantised(shape, stored), expected);
      std::vector<float> two(2 * 384);
      ASSERT_TRUE(dequantise_rows(shape, stored.parts(), 3, two).ok());
      EXPECT_EQ(two, std::vector<float>(expected.begin() + 3 * 384, expected.end()));
    }
  }
}

TEST(Matrix, BySizeThreeBitsStayNearFour) {
  const MatrixShape shape{Format::kQ3, 1, 384, 64};
  const auto values = random_values(Kind::kNormal, 384, 3);
  std::vector<float> weights(384);
  weigh_by_size(64, values, {}, weights);
  Stored stored(shape);
  const auto error = quantise_matrix(shape, values, {}, stored.parts(), nullptr, true);
  ASSERT_TRUE(error.ok()) << error.error().message;
  const Fitted fitted = fit_near_q4(64, values, weights);
  EXPECT_EQ(*error, fitted.error);
  EXPECT_EQ(dequantised(shape, stored), values_of(Format::kQ3, 64, fitted));
}

TEST(Matrix, FloatFormatsHoldWhatTheyCan) {
  const auto values = random_values(Kind::kNormal, 3 * 37, 3);
  const MatrixShape full{Format::kF32, 3, 37}, narrow{Format::kBf16, 3, 37};
  Stored a(full), b(narrow);
  EXPECT_EQ(*quantise_matrix(full, values, {}, a.parts()), 0);
  EXPECT_EQ(dequantised(full, a), values);
  const auto error = quantise_matrix(narrow, values, {}, b.parts());
  ASSERT_TRUE(error.ok());
  auto rounded = values;
  for (float& v : rounded) v = to_float(to_bfloat16(v));
  EXPECT_EQ(dequantised(narrow, b), rounded);
  EXPECT_DOUBLE_EQ(*error, squared_error(values, rounded));
  std::vector<std::uint16_t> bits(values.size());
  std::vector<float> back(values.size());
  round_to_bfloat16(values, bits);
  widen_bfloat16(bits, back);
  EXPECT_EQ(back, rounded);
}

TEST(Matrix, ThreadsDoNotChangeABit) {
  for (const Format format : kQuantised) {
    const MatrixShape shape{format, 37, 256, 64};
    const auto values = random_values(Kind::kLaplace, 37 * 256, 4);
    const auto importance = random_importance(256, 5);
    Stored alone(shape);
    const auto error = quantise_matrix(shape, values, importance, alone.parts());
    for (const int threads : {1, 2, 3, 7}) {
      ThreadTeam team(threads);
      Stored shared(shape);
      EXPECT_EQ(*quantise_matrix(shape, values, importance, shared.parts(), &team), *error);
      EXPECT_EQ(shared, alone) << threads << " threads";
    }
  }
}

TEST(Matrix, EmptyOnesAreFine) {
  for (const MatrixShape& shape : {MatrixShape{Format::kQ4, 0, 64}, MatrixShape{Format::kQ2, 3, 0},
                                   MatrixShape{Format::kF32, 0, 5}, MatrixShape{Format::kBf16, 2, 0}}) {
    Stored stored(shape);
    EXPECT_TRUE(quantise_matrix(shape, {}, {}, stored.parts()).ok());
    EXPECT_TRUE(dequantise_rows(shape, stored.parts(), 0, {}).ok());
  }
}

std::string message(const MatrixShape& shape, const std::vector<float>& values,
                    const std::vector<float>& importance = {}) {
  Stored stored(shape);
  const auto result = quantise_matrix(shape, values, importance, stored.parts());
  return result.ok() ? "" : result.error().message;
}

TEST(Matrix, WhatIsNotFiniteIsNamed) {
  for (const Format format : {Format::kQ4, Format::kQ2, Format::kF32}) {
    const MatrixShape shape{format, 4, 64, 32};
    std::vector<float> values(4 * 64, 0.5F);
    values[2 * 64 + 33] = std::nanf("");
    EXPECT_EQ(message(shape, values), "weight [2][33] of [4][64] is nan: needed a finite number");
    values[2 * 64 + 33] = -INFINITY;
    EXPECT_EQ(message(shape, values), "weight [2][33] of [4][64] is -inf: needed a finite number");
  }
}

TEST(Matrix, SizesThatDoNotFitAreNamed) {
  const MatrixShape shape{Format::kQ4, 4, 64, 32};
  const std::vector<float> values(4 * 64);
  EXPECT_EQ(message(shape, std::vector<float>(255)), "weights: found 255, needed 256");
  EXPECT_EQ(message(shape, values, std::vector<float>(63)), "importances of inputs: found 63, needed 64");
  std::vector<float> importance(64, 1);
  importance[9] = -1;
  EXPECT_EQ(message(shape, values, importance),
            "the importance of input 9 is -1: needed a finite number that is not negative");
  EXPECT_EQ(message({Format::kQ4, 4, 64, 48}, values),
            "groups of 48 weights: needed a multiple of 32 up to 512");
  EXPECT_EQ(message({Format::kQ3, 4, 64, 128}, values), "rows of 64 weights are not whole groups of 128");
  Stored stored(shape);
  auto parts = stored.parts();
  parts.biases = parts.biases.first(14);
  EXPECT_EQ(quantise_matrix(shape, values, {}, parts).error().message,
            "bytes of biases: found 14, needed 16");
  std::vector<float> out(64);
  EXPECT_EQ(dequantise_rows(shape, stored.parts(), 4, out).error().message, "rows 4 to 4 of a matrix of 4");
  EXPECT_EQ(dequantise_rows(shape, stored.parts(), 0, std::span(out).first(63)).error().message,
            "room for 63 weights: needed whole rows of 64");
}

}  // namespace
}  // namespace sluice::quant

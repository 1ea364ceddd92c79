// Error feedback: the error that it promises to make less is less, and independent inputs change nothing.
#include "quant/feedback.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace sluice::quant {
namespace {

constexpr std::int64_t kIn = 128, kRows = 21;

struct Stored {
  std::vector<std::byte> data, scales, biases;
  explicit Stored(const MatrixShape& shape)
      : data(static_cast<std::size_t>(shape.data_bytes())),
        scales(static_cast<std::size_t>(shape.scale_bytes())),
        biases(scales.size()) {}
  MutableMatrixParts parts() { return {data, scales, biases}; }
};

std::vector<float> normal(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> draw;
  std::vector<float> out(count);
  for (float& x : out) x = draw(random);
  return out;
}

/// The lower triangle of the second moment of inputs that share a few causes.
std::vector<float> moment_of_inputs(std::vector<float>& squares) {
  const auto causes = normal(kIn * 8, 7);
  std::vector<float> triangle;
  for (std::size_t i = 0; i < kIn; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      double sum = i == j ? 1 : 0;
      for (std::size_t c = 0; c < 8; ++c) sum += double{causes[i * 8 + c]} * double{causes[j * 8 + c]};
      triangle.push_back(static_cast<float>(sum));
    }
    squares.push_back(triangle.back());
  }
  return triangle;
}

double output_error(const MatrixShape& shape, const std::vector<float>& values, Stored& stored,
                    const std::vector<float>& triangle) {
  std::vector<float> out(values.size());
  EXPECT_TRUE(dequantise_rows(shape, stored.parts(), 0, out).ok());
  double error = 0;
  for (std::size_t r = 0; r < kRows; ++r) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < kIn; ++i) {
      const double ei = double{values[r * kIn + i]} - double{out[r * kIn + i]};
      for (std::size_t j = 0; j <= i; ++j, ++at) {
        const double ej = double{values[r * kIn + j]} - double{out[r * kIn + j]};
        error += (i == j ? 1 : 2) * ei * ej * double{triangle[at]};
      }
    }
  }
  return error;
}

TEST(Feedback, MakesTheErrorOfOutputsMuchLess) {
  std::vector<float> squares;
  const auto triangle = moment_of_inputs(squares);
  const auto values = normal(kRows * kIn, 3);
  const auto factor = InputFactor::of_moment(kIn, triangle, 0.001);
  ASSERT_TRUE(factor.ok()) << factor.error().message;
  std::vector<float> sizes = squares;
  for (float& s : sizes) s = std::sqrt(s);
  for (const auto format : {spec::Format::kQ4, spec::Format::kQ3, spec::Format::kQ2}) {
    const MatrixShape shape{format, kRows, kIn, 64};
    Stored plain(shape), fed(shape);
    ASSERT_TRUE(quantise_matrix(shape, values, squares, plain.parts()).ok());
    const auto error = quantise_with_feedback(shape, values, sizes, *factor, fed.parts());
    ASSERT_TRUE(error.ok()) << error.error().message;
    const double measured = output_error(shape, values, fed, triangle);
    EXPECT_LT(measured, 0.5 * output_error(shape, values, plain, triangle));
    // What it returns is the error that it minimises, which differs by the damping.
    EXPECT_NEAR(*error / measured, 1, 0.05);
  }
}

TEST(Feedback, IndependentInputsGetWhatTheFitGivesThem) {
  std::vector<float> identity;
  for (std::size_t i = 0; i < kIn; ++i) {
    for (std::size_t j = 0; j <= i; ++j) identity.push_back(i == j ? 2.0F : 0.0F);
  }
  const auto factor = InputFactor::of_moment(kIn, identity, 0);
  ASSERT_TRUE(factor.ok());
  const auto values = normal(kRows * kIn, 5);
  const MatrixShape shape{spec::Format::kQ4, kRows, kIn, 64};
  Stored plain(shape), fed(shape);
  const auto wanted = quantise_matrix(shape, values, {}, plain.parts());
  const auto error = quantise_with_feedback(shape, values, std::vector<float>(kIn, 1), *factor, fed.parts());
  ASSERT_TRUE(wanted.ok() && error.ok());
  EXPECT_EQ(fed.scales, plain.scales);
  EXPECT_EQ(fed.biases, plain.biases);
  EXPECT_NEAR(*error / *wanted, 1, 1e-4);
}

TEST(Feedback, MeansGiveTheFactorsOfTheirMoment) {
  const std::vector<float> squares{1, 4, 2}, means{0.5F, -1, 0};
  std::vector<float> triangle;
  for (std::size_t i = 0; i < 3; ++i) {
    for (std::size_t j = 0; j <= i; ++j) triangle.push_back(i == j ? squares[i] : means[i] * means[j]);
  }
  const auto wanted = InputFactor::of_moment(3, triangle, 0);
  const auto factor = InputFactor::of_means(squares, means);
  ASSERT_TRUE(wanted.ok());
  for (std::int64_t k = 0; k < 3; ++k) {
    EXPECT_NEAR(factor.left()[static_cast<std::size_t>(k)], wanted->left()[static_cast<std::size_t>(k)],
                1e-6);
    for (std::size_t j = 0; j < static_cast<std::size_t>(k); ++j) {
      EXPECT_NEAR(factor.column(k)[j], wanted->column(k)[j], 1e-6);
    }
  }
}

TEST(Feedback, NonsenseIsRefused) {
  EXPECT_FALSE(InputFactor::of_moment(2, std::vector<float>{1, 0}, 0.01).ok());
  EXPECT_FALSE(InputFactor::of_moment(2, std::vector<float>{1, 0, -1}, 0.01).ok());
  EXPECT_FALSE(InputFactor::of_moment(2, std::vector<float>{1, NAN, 1}, 0.01).ok());
  EXPECT_FALSE(InputFactor::of_moment(2, std::vector<float>{1, 3, 1}, 0.01).ok());
  EXPECT_TRUE(InputFactor::of_moment(2, std::vector<float>{0, 0, 0}, 0.01).ok());
  const MatrixShape shape{spec::Format::kQ2, 1, 64, 64};
  Stored stored(shape);
  const auto factor = InputFactor::of_means(std::vector<float>(64, 1), std::vector<float>(64, 0));
  EXPECT_FALSE(quantise_with_feedback(shape, std::vector<float>(64, NAN), std::vector<float>(64, 1), factor,
                                      stored.parts())
                   .ok());
  EXPECT_FALSE(quantise_with_feedback(shape, std::vector<float>(64, 1), std::vector<float>(63, 1), factor,
                                      stored.parts())
                   .ok());
}

}  // namespace
}  // namespace sluice::quant

// Memory, row utilities and the wide residual.
#include <limits>

#include "backend/on_backend.h"

namespace sluice::backend {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(CreateBackend, AnUnknownNameIsAnErrorThatQuotesIt) {
  const auto made = create_backend("abacus", {});
  ASSERT_FALSE(made.ok());
  EXPECT_NE(made.error().message.find("abacus"), std::string::npos);
}

#if !defined(__APPLE__)
TEST(CreateBackend, MetalIsRefusedWhereTheBuildHasNone) {
  const auto made = create_backend("metal", {});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.error().code, ErrorCode::kUnsupported);
  EXPECT_NE(made.error().message.find("macOS"), std::string::npos);
}
#endif

class Rows : public OnBackend {};

TEST_P(Rows, MemoryStartsAsZeroAndHoldsWhatIsWritten) {
  EXPECT_EQ(backend().name(), GetParam().name);
  const auto a = memory<float>(1000);
  EXPECT_EQ(download(a, 1000), std::vector<float>(1000));
  const auto values = Numbers(1).floats(1000);
  write(a, values);
  const auto b = memory<float>(1000);
  backend().copy(Dev<std::byte>(reinterpret_cast<std::byte*>(b.address())),
                 Dev<const std::byte>(reinterpret_cast<const std::byte*>(a.address())), 999 * sizeof(float));
  auto expected = values;
  expected[999] = 0;
  EXPECT_EQ(download(b, 1000), expected);
  backend().zero(Dev<std::byte>(reinterpret_cast<std::byte*>(b.address())), 4 * sizeof(float));
  for (std::size_t i = 0; i < 4; ++i) expected[i] = 0;
  EXPECT_EQ(download(b, 1000), expected);
  backend().synchronise();
}

TEST_P(Rows, NothingIsMovedForNothing) {
  EXPECT_TRUE(backend().allocate(0).ok());
  const auto a = upload(std::vector<float>{1});
  backend().zero(Dev<std::byte>(reinterpret_cast<std::byte*>(a.address())), 0);
  backend().upload({}, {});
  backend().download({}, {});
  backend().linear({}, {}, 0, {});
  EXPECT_EQ(download(a, 1)[0], 1);
}

TEST_P(Rows, ArgmaxTakesTheLowestOfEqualsAndNeverNan) {
  const std::vector<float> x{1,     3,     3,    2,      //
                             NAN,   -5,    NAN,  -5,     //
                             NAN,   NAN,   NAN,  NAN,    //
                             -kInf, -kInf, NAN,  -kInf,  //
                             NAN,   -kInf, NAN,  NAN,    //
                             0,     -0.0F, kInf, kInf};
  const auto index = memory<std::int32_t>(6);
  backend().argmax_rows(upload(x), 6, 4, index);
  EXPECT_EQ(download(index, 6), (std::vector<std::int32_t>{1, 1, 0, 0, 1, 2}));
}

TEST_P(Rows, ArgmaxMatchesASearchAtAnyWidth) {
  Numbers numbers(2);
  for (const std::int64_t width : {1, 2, 7, 63, 64, 65, 1000}) {
    std::vector<float> x;
    std::vector<std::int32_t> expected;
    for (int r = 0; r < 5; ++r) {
      std::int32_t best = -1;
      for (std::int64_t i = 0; i < width; ++i) {
        const float value = numbers.below(10) == 0 ? NAN : static_cast<float>(numbers.below(6)) - 3;
        x.push_back(value);
        const auto row = x.end() - (i + 1);
        if (!std::isnan(value) && (best < 0 || value > row[best])) best = static_cast<std::int32_t>(i);
      }
      expected.push_back(std::max(best, 0));
    }
    const auto index = memory<std::int32_t>(5);
    backend().argmax_rows(upload(x), 5, width, index);
    EXPECT_EQ(download(index, 5), expected) << width;
  }
}

TEST_P(Rows, SiluIsSafeForEveryFiniteNumber) {
  const std::vector<float> x{0, -0.0F, 1, -1, 20, -20, 88, -88, 104, -104, 1e30F, -1e30F, 3e38F, -3e38F};
  const auto count = static_cast<std::int64_t>(x.size());
  const auto device = upload(x);
  backend().silu_rows(device, count, 1);
  const auto up = upload(std::vector<float>(x.size(), 2.0F));
  const auto product = memory<float>(count);
  backend().silu_multiply(upload(x), up, count, product);
  const auto found = download(device, count);
  const auto doubled = download(product, count);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double exact = x[i] / (1 + std::exp(-static_cast<double>(x[i])));
    EXPECT_NEAR(found[i], exact, std::abs(exact) * 1e-6 + 1e-30) << x[i];
    if (std::abs(x[i]) < 1e38F) {
      EXPECT_NEAR(doubled[i], 2 * exact, std::abs(exact) * 2e-6 + 1e-30) << x[i];
    }
  }
}

TEST_P(Rows, ScatterAddsARowThatIsNamedTwiceInOrder) {
  const auto out = upload(std::vector<float>{1, 2, 3, 4});
  backend().scatter_add_rows(upload(std::vector<float>{1, 1, 10, 10, 100, 100}),
                             upload(std::vector<std::uint32_t>{1, 0, 1}),
                             upload(std::vector<float>{1, 2, 0.5F}), 3, 2, out);
  EXPECT_EQ(download(out, 4), (std::vector<float>{21, 22, 54, 55}));
}

TEST_P(Rows, NormPrepareWithoutInjectionLeavesTheResidualAlone) {
  Numbers numbers(3);
  const WideShape shape{2, 4, 64};
  const auto values = numbers.floats(2 * 4 * 64);
  const auto wide = upload(values);
  const auto w = upload(numbers.floats(4 * 64));
  const auto y = memory<float>(2 * 4 * 64);
  const auto expected = memory<float>(2 * 4 * 64);
  backend().norm_prepare(shape, {}, {}, wide, w, 1e-6F, y, nullptr);
  backend().group_norm(shape, upload(values), w, 0, 1e-6F, expected);
  EXPECT_EQ(download(wide, 2 * 4 * 64), values);
  EXPECT_EQ(bits_of_values(download(y, 2 * 4 * 64)), bits_of_values(download(expected, 2 * 4 * 64)));
}

TEST_P(Rows, NormPrepareEqualsInjectThenNorm) {
  Numbers numbers(4);
  const WideShape shape{3, 4, 96};
  const std::int64_t count = 3 * 4 * 96;
  const auto values = numbers.floats(count);
  const auto out = upload(numbers.floats(3 * 96));
  const auto gate = upload(numbers.floats(3 * 4, -8, 8));
  const auto w = upload(numbers.floats(4 * 96));
  const auto fused = upload(values);
  const auto fused_y = memory<float>(count);
  backend().norm_prepare(shape, out, gate, fused, w, 1e-6F, fused_y, nullptr);
  const auto wide = upload(values);
  const auto y = memory<float>(count);
  backend().inject(shape, out, gate, wide);
  backend().group_norm(shape, wide, w, 0, 1e-6F, y);
  EXPECT_EQ(bits_of_values(download(fused, count)), bits_of_values(download(wide, count)));
  EXPECT_EQ(bits_of_values(download(fused_y, count)), bits_of_values(download(y, count)));
}

TEST_P(Rows, ANormOfZerosIsZero) {
  const WideShape shape{1, 2, 64};
  const auto y = upload(std::vector<float>(128, 7.0F));
  backend().group_norm(shape, memory<float>(128), upload(std::vector<float>(128, 1.0F)), 1, 1e-6F, y);
  EXPECT_EQ(download(y, 128), std::vector<float>(128));
}

TEST_P(Rows, PleGateOfAZeroProductIsOneHalf) {
  const WideShape shape{1, 1, 64};
  const auto value = Numbers(5).floats(64);
  const auto gated = memory<float>(64);
  backend().ple_gate(shape, memory<float>(64), upload(Numbers(6).floats(64)), upload(value), gated);
  auto expected = value;
  for (float& v : expected) v *= 0.5F;
  EXPECT_LT(relative_l2(download(gated, 64), expected), 1e-3);
}

SLUICE_ON_EVERY_BACKEND(Rows);

}  // namespace
}  // namespace sluice::backend

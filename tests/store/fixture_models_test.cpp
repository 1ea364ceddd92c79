// The checkpoints of the repository, opened and read.
#include <gtest/gtest.h>

#include <cmath>

#include "base/numbers.h"
#include "store/source.h"
#include "support/fixtures.h"

namespace sluice::store {
namespace {

const std::filesystem::path kData = SLUICE_TEST_DATA;
const std::filesystem::path kModels = SLUICE_MODELS;

std::unique_ptr<WeightSource> open(const std::filesystem::path& folder) {
  auto source = open_checkpoint(folder);
  if (!source) {
    ADD_FAILURE() << source.error().message;
    return nullptr;
  }
  return std::move(*source);
}

TEST(FixtureModels, TinyOpens) {
  const auto tiny = open(kData / "model/tiny");
  ASSERT_NE(tiny, nullptr);
  EXPECT_EQ(tiny->form(), "bf16");
  EXPECT_TRUE(tiny->has_mtp());
  EXPECT_TRUE(tiny->missing().empty());
}

TEST(FixtureModels, Tiny4Opens) {
  const auto tiny = open(kData / "model/tiny4");
  ASSERT_NE(tiny, nullptr);
  EXPECT_EQ(tiny->form(), "mlx-4bit");
}

TEST(FixtureModels, DemoOpens) {
  const auto demo = open(kModels / "demo");
  ASSERT_NE(demo, nullptr);
  EXPECT_EQ(demo->form(), "mlx-4bit");
  EXPECT_TRUE(demo->has_mtp());
}

}  // namespace
}  // namespace sluice::store

#include "experts/heat_file.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>

#include "experts/heat.h"
#include "support/temp_folder.h"

namespace sluice::experts {
namespace {

TEST(HeatFile, KeepsWhatWasHot) {
  const test::TempFolder folder;
  Heat heat(4, 256);
  heat.touch(1, 1);
  for (int i = 0; i < 500; ++i) heat.tick();
  heat.touch(2, 1);
  ASSERT_TRUE(write_heat(folder / "heat", heat.relative(4)).ok());
  const auto kept = read_heat(folder / "heat", 4);
  ASSERT_TRUE(kept.ok()) << kept.error().message;
  EXPECT_EQ(*kept, heat.relative(4));

  Heat later(4, 256);
  later.resume(*kept);
  EXPECT_EQ(later.of(0), Heat::kNever);
  EXPECT_GT(later.of(2), later.of(1));
  EXPECT_GT(later.of(1), later.of(0));
  // Kept heat goes on losing its worth.
  later.touch(3, 1);
  EXPECT_NEAR(later.of(3), later.of(2), 1e-6);
}

TEST(HeatFile, OfAnotherNumberOfRecordsGivesTheFirst) {
  const test::TempFolder folder;
  const std::vector<float> heat{1, 2, 3};
  ASSERT_TRUE(write_heat(folder / "heat", heat).ok());
  EXPECT_EQ(read_heat(folder / "heat", 2).value(), (std::vector<float>{1, 2}));
  EXPECT_EQ(read_heat(folder / "heat", 9).value(), heat);
}

TEST(HeatFile, WhatIsNotWholeIsRefused) {
  const test::TempFolder folder;
  const auto path = folder / "heat";
  EXPECT_FALSE(read_heat(path, 8).ok());
  const std::vector<float> heat{1, 2, 3, 4};
  ASSERT_TRUE(write_heat(path, heat).ok());
  std::string text;
  {
    std::ifstream in(path, std::ios::binary);
    text.assign(std::istreambuf_iterator<char>(in), {});
  }
  const auto with = [&](std::string changed) {
    std::ofstream(path, std::ios::binary) << changed;
    return read_heat(path, 8).ok();
  };
  ASSERT_TRUE(with(text));
  for (std::size_t i = 0; i < text.size(); ++i) {
    EXPECT_FALSE(with(text.substr(0, i))) << i;
    std::string flipped = text;
    flipped[i] = static_cast<char>(flipped[i] ^ 1);
    EXPECT_FALSE(with(flipped)) << i;
  }
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 1e9F}) {
    const std::vector<float> wrong{1, bad};
    ASSERT_TRUE(write_heat(path, wrong).ok());
    EXPECT_FALSE(read_heat(path, 8).ok()) << bad;
  }
}

}  // namespace
}  // namespace sluice::experts

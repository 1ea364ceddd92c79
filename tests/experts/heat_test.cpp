// What makes a record worth keeping.
#include "experts/heat.h"

#include <gtest/gtest.h>

namespace sluice::experts {
namespace {

TEST(Heat, MoreTouchesAndLaterTouchesAreHotter) {
  Heat heat(3, 10);
  heat.touch(0, 1);
  heat.touch(1, 1);
  heat.touch(1, 1);
  EXPECT_GT(heat.of(1), heat.of(0));
  EXPECT_LT(heat.of(2), heat.of(0));  // never touched
  for (int i = 0; i < 100; ++i) heat.tick();
  heat.touch(0, 1);
  EXPECT_GT(heat.of(0), heat.of(1));  // ten half-lives later two old touches are worth less than a new one
}

TEST(Heat, ATouchLosesHalfItsValueInAHalfLife) {
  Heat heat(2, 8);
  heat.touch(0, 1);
  heat.touch(0, 1);
  for (int i = 0; i < 8; ++i) heat.tick();
  heat.touch(1, 1);
  EXPECT_NEAR(heat.of(0), heat.of(1), 1e-12);
}

TEST(Heat, AScanDoesNotPushOutWhatDecodingComesBackTo) {
  Heat heat(1000, 100);
  for (int step = 0; step < 5; ++step) {
    heat.touch(0, 1);
    heat.tick();
  }
  for (std::int64_t record = 1; record < 1000; ++record) heat.touch(record, 1.0 / 16);
  for (std::int64_t record = 1; record < 1000; ++record) EXPECT_LT(heat.of(record), heat.of(0));
}

TEST(Heat, StaysANumberForAnyLengthOfTime) {
  Heat heat(2, 1);
  for (int i = 0; i < 1'000'000; ++i) {
    heat.touch(0, 1);
    heat.tick();
  }
  heat.touch(1, 1e-6);
  EXPECT_TRUE(std::isfinite(heat.of(0)) && std::isfinite(heat.of(1)));
}

}  // namespace
}  // namespace sluice::experts

// When guessing pays, by what came of it.
#include "experts/lookahead.h"

#include <gtest/gtest.h>

namespace sluice::experts {
namespace {

TEST(Lookahead, IsBelievedUntilItIsKnown) {
  const Lookahead lookahead(2);
  EXPECT_TRUE(lookahead.pays(0, 1));
}

TEST(Lookahead, StopsWhenItIsMostlyWrongAndTriesAgainNowAndThen) {
  Lookahead lookahead(2);
  for (int step = 0; step < 50; ++step) {
    for (const std::uint32_t expert : {1U, 2U, 3U, 4U}) lookahead.predicted(0, expert);
    EXPECT_EQ(lookahead.begun(0).size(), 4U);
    lookahead.came(0, 1, 4);
    EXPECT_TRUE(lookahead.begun(0).empty());
  }
  EXPECT_LT(lookahead.useful(0), Lookahead::kLeastUseful);
  EXPECT_FALSE(lookahead.pays(0, 1));
  EXPECT_TRUE(lookahead.pays(0, Lookahead::kTryEvery));
  EXPECT_TRUE(lookahead.pays(1, 1));  // another layer's affair
  // Texts change: right again, it goes on.
  for (int step = 0; step < 50; ++step) {
    lookahead.predicted(0, 1);
    lookahead.came(0, 1, 4);
  }
  EXPECT_TRUE(lookahead.pays(0, 1));
}

TEST(Lookahead, IsNotNeededWhereNothingIsRead) {
  Lookahead lookahead(1);
  for (int step = 0; step < 100; ++step) lookahead.came(0, 0, 0);
  EXPECT_FALSE(lookahead.pays(0, Lookahead::kTryEvery));
}

}  // namespace
}  // namespace sluice::experts

// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/caused_waits.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

absl::Time At(int seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

testing::Matcher<v1::CausedWait> Caused(uint32_t worker, double seconds) {
  return testing::AllOf(testing::Property(&v1::CausedWait::worker, worker),
                        testing::Property(&v1::CausedWait::seconds, seconds));
}

TEST(CausedWaitsTest, ChargesTheWholeWaitToTheWorkerThatEndedIt) {
  CausedWaits waits;
  EXPECT_THAT(waits.List(), IsEmpty());
  waits.Charge(3, At(10), At(12));
  waits.Charge(1, At(20), At(21));
  waits.Charge(3, At(30), At(35));
  EXPECT_THAT(waits.List(), ElementsAre(Caused(1, 1), Caused(3, 7)));
}

TEST(CausedWaitsTest, ManyPullsThatWaitTogetherCountOnce) {
  CausedWaits waits;
  waits.Charge(2, At(10), At(14));
  waits.Charge(2, At(11), At(14));
  waits.Charge(2, At(12), At(15));
  EXPECT_THAT(waits.List(), ElementsAre(Caused(2, 5)));
}

TEST(CausedWaitsTest, WaitsThatOverlapAreDividedAtTheFirstEnd) {
  CausedWaits waits;
  waits.Charge(1, At(10), At(12));
  waits.Charge(2, At(10), At(15));
  EXPECT_THAT(waits.List(), ElementsAre(Caused(1, 2), Caused(2, 3)));
}

TEST(CausedWaitsTest, AClockThatGoesBackChargesNothing) {
  CausedWaits waits;
  waits.Charge(1, At(10), At(9));
  EXPECT_THAT(waits.List(), IsEmpty());
}

}  // namespace
}  // namespace ballast

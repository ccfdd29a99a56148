// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/cancellable_wait.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class CancellableWaitTest : public ::testing::Test {
 protected:
  std::vector<WaitList::Ticket> cancelled_;
  CancellableWait wait_{[this](WaitList::Ticket ticket) { cancelled_.push_back(ticket); }};
};

TEST_F(CancellableWaitTest, CancelsTheWaitThatLasts) {
  wait_.Began(7);
  EXPECT_THAT(cancelled_, IsEmpty());
  wait_.Cancel();
  EXPECT_THAT(cancelled_, ElementsAre(7));
}

TEST_F(CancellableWaitTest, CancelsAWaitThatBeginsAfterItsCallerHasGone) {
  wait_.Cancel();
  EXPECT_THAT(cancelled_, IsEmpty());
  wait_.Began(7);
  EXPECT_THAT(cancelled_, ElementsAre(7));
}

TEST_F(CancellableWaitTest, CancelsNothingIfTheCallDidNotWait) {
  wait_.Began(WaitList::kNoTicket);
  wait_.Cancel();
  EXPECT_THAT(cancelled_, IsEmpty());
}

}  // namespace
}  // namespace ballast

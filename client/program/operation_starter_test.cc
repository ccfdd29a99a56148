// SPDX-License-Identifier: Apache-2.0
#include "client/program/operation_starter.h"

#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"

namespace ballast {
namespace {

TEST(OperationStarterTest, StartsInAnotherThreadWhileTheCallerGoesOn) {
  absl::Notification caller_went_on, started;
  OperationStarter starter;
  starter.Start([&] {
    caller_went_on.WaitForNotification();
    started.Notify();
  });
  caller_went_on.Notify();
  started.WaitForNotification();
}

TEST(OperationStarterTest, ItsEndStartsAllThatAreLeftInTheirOrder) {
  std::vector<int> order;
  {
    OperationStarter starter;
    for (int i = 0; i < 5; ++i) starter.Start([&order, i] { order.push_back(i); });
  }
  EXPECT_THAT(order, testing::ElementsAre(0, 1, 2, 3, 4));
}

}  // namespace
}  // namespace ballast

// SPDX-License-Identifier: Apache-2.0
#include "common/signal_watch.h"

#include <signal.h>
#include <unistd.h>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(SignalWatchTest, CallsForEachSignalAndCountsThem) {
  absl::Notification first, second;
  int signal = 0;
  SignalWatch watch([&](int number, int count) {
    signal = number;
    (count == 1 ? first : second).Notify();
  });
  kill(getpid(), SIGTERM);
  ASSERT_TRUE(first.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_EQ(signal, SIGTERM);
  kill(getpid(), SIGINT);
  ASSERT_TRUE(second.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_EQ(signal, SIGINT);
}

}  // namespace
}  // namespace ballast

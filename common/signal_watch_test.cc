// SPDX-License-Identifier: Apache-2.0
#include "common/signal_watch.h"

#include <signal.h>
#include <unistd.h>

#include <thread>

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

TEST(SignalWatchTest, HearsASignalThatAnEarlierThreadTakes) {
  absl::Notification started, done, heard;
  std::thread earlier([&] {
    started.Notify();
    done.WaitForNotification();
  });
  started.WaitForNotification();
  {
    SignalWatch watch([&](int, int) { heard.Notify(); });
    pthread_kill(earlier.native_handle(), SIGTERM);
    EXPECT_TRUE(heard.WaitForNotificationWithTimeout(absl::Seconds(30)));
  }
  done.Notify();
  earlier.join();
}

TEST(SignalWatchTest, RestoresWhatTheSignalsDidBefore) {
  signal(SIGTERM, SIG_IGN);
  {
    SignalWatch watch([](int, int) {});
  }
  EXPECT_EQ(signal(SIGTERM, SIG_DFL), SIG_IGN);
}

}  // namespace
}  // namespace ballast

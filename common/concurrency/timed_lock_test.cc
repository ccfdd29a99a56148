// SPDX-License-Identifier: Apache-2.0
#include "common/concurrency/timed_lock.h"

#include <gtest/gtest.h>

#include <thread>

#include "absl/synchronization/notification.h"

namespace ballast {
namespace {

// Returns the time that another thread waited for a mutex, which this one holds for a millisecond after that thread
// said that it is about to take it.
absl::Duration WaitOfAnother() {
  absl::Mutex mutex;
  absl::Notification waits;
  absl::Duration waited;
  std::thread other;
  {
    absl::MutexLock lock(&mutex);
    other = std::thread([&] {
      waits.Notify();
      waited = TimedLock(&mutex).waited();
    });
    waits.WaitForNotification();
    const absl::Time end = absl::Now() + absl::Milliseconds(1);
    while (absl::Now() < end) std::this_thread::yield();
  }
  other.join();
  return waited;
}

TEST(TimedLockTest, FreeMutexTakesNoTime) {
  absl::Mutex mutex;
  EXPECT_EQ(TimedLock(&mutex).waited(), absl::ZeroDuration());
  // It is free again.
  EXPECT_EQ(TimedLock(&mutex).waited(), absl::ZeroDuration());
}

TEST(TimedLockTest, WaitForAnotherHolderIsMeasured) {
  absl::Duration waited;
  // The other thread may be stopped for the whole millisecond, but not every time.
  for (int i = 0; i < 1000 && waited == absl::ZeroDuration(); ++i) waited = WaitOfAnother();
  EXPECT_GT(waited, absl::ZeroDuration());
}

}  // namespace
}  // namespace ballast

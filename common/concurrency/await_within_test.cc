// SPDX-License-Identifier: Apache-2.0
#include "common/concurrency/await_within.h"

#include <gtest/gtest.h>

#include <thread>

namespace ballast {
namespace {

TEST(AwaitWithinTest, WithoutTimeItSaysWhatIsTrueNow) {
  absl::Mutex mutex;
  bool there = false;
  absl::MutexLock lock(&mutex);
  EXPECT_FALSE(AwaitWithin(mutex, absl::Condition(&there), absl::ZeroDuration()));
  EXPECT_FALSE(AwaitWithin(mutex, absl::Condition(&there), -absl::InfiniteDuration()));
  there = true;
  EXPECT_TRUE(AwaitWithin(mutex, absl::Condition(&there), absl::ZeroDuration()));
}

TEST(AwaitWithinTest, WithTimeItWaits) {
  absl::Mutex mutex;
  bool there = false;
  std::thread other([&] {
    absl::MutexLock lock(&mutex);
    there = true;
  });
  {
    absl::MutexLock lock(&mutex);
    EXPECT_TRUE(AwaitWithin(mutex, absl::Condition(&there), absl::Minutes(1)));
    there = false;
    EXPECT_FALSE(AwaitWithin(mutex, absl::Condition(&there), absl::Milliseconds(1)));
  }
  other.join();
}

}  // namespace
}  // namespace ballast

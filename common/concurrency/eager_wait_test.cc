// SPDX-License-Identifier: Apache-2.0
#include "common/concurrency/eager_wait.h"

#include <sched.h>

#include <atomic>
#include <thread>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/program/core_count.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

class EagerWaitTest : public testing::Test {
 protected:
  EagerWaitTest() { asked_ = 0; }

  // Waits for what is there at the look with that number, or after the sleep.
  void Wait(int found_at, absl::Duration sleep = absl::ZeroDuration()) {
    looks_ = sleeps_ = 0;
    wait_.Wait([&] { return ++looks_ == found_at; },
               [&] {
                 ++sleeps_;
                 absl::SleepFor(sleep);
               });
  }

  // Waits until the processor has been asked for `asked` times, or after the sleep. Returns whether it slept.
  static bool SleepsWhile(EagerWait& wait, int asked) {
    bool slept = false;
    asked_ = 0;
    wait.Wait([&] { return asked_ == asked; }, [&] { slept = true; });
    return slept;
  }
  static bool IsFree() {
    ++asked_;
    return true;
  }
  static bool IsNotFree() {
    ++asked_;
    return false;
  }

  static inline int asked_ = 0;
  EagerWait wait_;
  int looks_ = 0;
  int sleeps_ = 0;
};

constexpr absl::Duration kLong = absl::Milliseconds(1);

TEST_F(EagerWaitTest, SleepsAtFirst) {
  Wait(/*found_at=*/1);
  EXPECT_EQ(looks_, 0);
  EXPECT_EQ(sleeps_, 1);
}

// A loaded machine may make any wait long, so one of many must be short.
TEST_F(EagerWaitTest, LooksAfterAShortWait) {
  for (int i = 0; i < 1000 && looks_ == 0; ++i) Wait(/*found_at=*/1);
  EXPECT_EQ(looks_, 1);
  EXPECT_EQ(sleeps_, 0);
}

TEST_F(EagerWaitTest, SleepsAfterALookInVain) {
  for (int i = 0; i < 1000 && looks_ == 0; ++i) Wait(/*found_at=*/-1);
  EXPECT_GE(looks_, 1);
  EXPECT_EQ(sleeps_, 1);
}

TEST_F(EagerWaitTest, DoesNotLookAfterALongWait) {
  for (int i = 0; i < 10; ++i) {
    Wait(/*found_at=*/-1, kLong);
    Wait(/*found_at=*/1, kLong);
    EXPECT_EQ(looks_, 0);
    EXPECT_EQ(sleeps_, 1);
  }
}

TEST_F(EagerWaitTest, LooksLongerWhileAProcessorIsFree) {
  EagerWait wait(&IsFree);
  bool slept = true;
  for (int i = 0; i < 1000 && slept; ++i) slept = SleepsWhile(wait, /*asked=*/5);
  EXPECT_FALSE(slept);
  EXPECT_EQ(asked_, 5);
}

TEST_F(EagerWaitTest, SleepsAtLastThoughAProcessorIsFree) {
  EagerWait wait(&IsFree);
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(SleepsWhile(wait, /*asked=*/1000));
}

TEST_F(EagerWaitTest, SleepsSoonWhileNoProcessorIsFree) {
  EagerWait wait(&IsNotFree);
  for (int i = 0; i < 1000 && asked_ == 0; ++i) EXPECT_TRUE(SleepsWhile(wait, /*asked=*/4));
  EXPECT_EQ(asked_, 3);
}

TEST_F(EagerWaitTest, LooksOnIfNoProcessorIsFreeForAMoment) {
  EagerWait wait(+[] { return ++asked_ % 3 == 0; });
  bool slept = true;
  for (int i = 0; i < 1000 && slept; ++i) slept = SleepsWhile(wait, /*asked=*/20);
  EXPECT_FALSE(slept);
}

// What a thread waits for comes from another that has just been woken on the same processor.
TEST_F(EagerWaitTest, LetsAThreadOnItsProcessorRun) {
  constexpr int kWaits = 200;
  cpu_set_t all, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  CPU_ZERO(&one);
  CPU_SET(sched_getcpu(), &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  absl::Mutex mutex;
  // The system's Abseil, whose mutex tests the condition, does not tell ThreadSanitizer that it holds a lock then.
  std::atomic<int> asked{0}, answered{0};
  // It inherits the processor.
  std::thread other([&] {
    for (int i = 1; i <= kWaits; ++i) {
      const auto is_asked = [&] { return asked == i; };
      mutex.LockWhen(absl::Condition(&is_asked));
      mutex.Unlock();
      answered = i;
      // It has had more of the processor than the thread that waits, so the system does not let it run at once.
      for (const absl::Time end = absl::Now() + absl::Microseconds(200); absl::Now() < end;) {
      }
    }
  });
  EagerWait wait(&IsFree);
  int slept = 0;
  for (int i = 1; i <= kWaits; ++i) {
    absl::SleepFor(absl::Microseconds(300));
    {
      absl::MutexLock lock(&mutex);
      asked = i;
    }
    wait.Wait([&] { return answered == i; },
              [&] {
                ++slept;
                while (answered != i) absl::SleepFor(absl::Microseconds(50));
              });
  }
  other.join();
  EXPECT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
  // It sleeps at first, and after each wait that a loaded machine made long.
  EXPECT_LT(slept, kWaits / 2);
}

TEST_F(EagerWaitTest, TellsWhetherAProcessorIsFree) {
  const int threads = CoreCount() + 1;
  std::atomic<bool> stop{false};
  std::vector<std::thread> busy;
  for (int i = 0; i < threads; ++i) {
    busy.emplace_back([&] {
      while (!stop) {
      }
    });
  }
  bool free = true;
  for (const absl::Time end = absl::Now() + absl::Seconds(30); free && absl::Now() < end;) {
    free = EagerWait::ProcessorIsFree();
  }
  stop = true;
  for (std::thread& thread : busy) thread.join();
  EXPECT_FALSE(free);
}

}  // namespace
}  // namespace ballast

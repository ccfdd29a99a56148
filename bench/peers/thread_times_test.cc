// SPDX-License-Identifier: Apache-2.0
#include "bench/peers/thread_times.h"

#include <unistd.h>

#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/concurrency/named_thread.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(ThreadTimesTest, CountsWhatThreadsOfOneNameDo) {
  absl::Notification measured;
  absl::Notification computed;
  std::thread busy = NamedThread("busy thread", [&] {
    const absl::Time until = absl::Now() + absl::Milliseconds(200);
    while (absl::Now() < until) {
    }
    computed.Notify();
    measured.WaitForNotification();
  });
  std::thread idle = NamedThread("idle thread", [&] { measured.WaitForNotification(); });
  std::thread other = NamedThread("idle thread", [&] { measured.WaitForNotification(); });
  computed.WaitForNotification();
  ThreadTable table;
  const absl::Status status = AddThreads("test", getpid(), table);
  measured.Notify();
  for (std::thread* thread : {&busy, &idle, &other}) thread->join();
  ASSERT_TRUE(status.ok()) << status;
  const ThreadTimes worked = table.at({"test", "busy thread"}), slept = table.at({"test", "idle thread"});
  EXPECT_EQ(worked.threads, 1);
  EXPECT_EQ(slept.threads, 2);
  EXPECT_GE(slept.sleeps, 1);
  // It was runnable for 200 ms, whoever else needs the processors; the kernel rounds to a tick.
  EXPECT_GE(worked.running_seconds + worked.ready_seconds, 0.18);
  EXPECT_LT(slept.running_seconds, worked.running_seconds);
  EXPECT_EQ(table.at({"test", "main"}).threads, 1);
}

TEST(ThreadTimesTest, SinceIsTheDifference) {
  const ThreadTimes earlier = {2, 1.5, 0.25, 10}, later = {3, 4.0, 0.5, 35};
  const ThreadTimes done = later.Since(earlier);
  EXPECT_EQ(done.threads, 3);
  EXPECT_EQ(done.running_seconds, 2.5);
  EXPECT_EQ(done.ready_seconds, 0.25);
  EXPECT_EQ(done.sleeps, 25);
}

TEST(ThreadTimesTest, AProcessThatHasEndedIsNotFound) {
  ThreadTable table;
  EXPECT_TRUE(absl::IsNotFound(AddThreads("test", 0x7fffffff, table)));
  EXPECT_TRUE(table.empty());
}

}  // namespace
}  // namespace ballast

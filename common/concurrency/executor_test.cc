// SPDX-License-Identifier: Apache-2.0
#include "common/concurrency/executor.h"

#include <atomic>
#include <vector>

#include "absl/synchronization/barrier.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(ExecutorTest, RunsWhatWasSubmittedBeforeItEnds) {
  std::atomic<int> done{0};
  {
    Executor executor(3, 100);
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(executor.Submit([&] { ++done; }).ok());
  }
  EXPECT_EQ(done, 100);
}

TEST(ExecutorTest, OneThreadRunsTasksInTheirOrder) {
  std::vector<int> order;
  {
    Executor executor(1, 100);
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(executor.Submit([&order, i] { order.push_back(i); }).ok());
  }
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
}

TEST(ExecutorTest, SeveralThreadsRunTasksAtOnce) {
  Executor executor(2, 2);
  // Each task waits for the other.
  auto* both = new absl::Barrier(2);
  absl::BlockingCounter done(2);
  for (int i = 0; i < 2; ++i) {
    const absl::Status submitted = executor.Submit([&] {
      if (both->Block()) delete both;
      done.DecrementCount();
    });
    ASSERT_TRUE(submitted.ok());
  }
  done.Wait();
}

TEST(ExecutorTest, RefusesATaskWhileItsQueueIsFullAndNeverWaits) {
  absl::Notification busy, go;
  Executor executor(1, 1);
  const absl::Status submitted = executor.Submit([&] {
    busy.Notify();
    go.WaitForNotification();
  });
  ASSERT_TRUE(submitted.ok());
  busy.WaitForNotification();
  EXPECT_TRUE(executor.Submit([] {}).ok());
  const absl::Status refused = executor.Submit([] { FAIL() << "was refused"; });
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.message(), "got a task while 1 are queued, want at most 1");
  go.Notify();
}

TEST(ExecutorTest, AfterItsEndItTakesNothing) {
  Executor executor(2, 1);
  executor.Shutdown();
  executor.Shutdown();
  EXPECT_EQ(executor.Submit([] { FAIL() << "was refused"; }).code(), absl::StatusCode::kUnavailable);
}

TEST(ExecutorTest, ATaskMaySubmitAnother) {
  absl::Notification done;
  Executor executor(1, 1);
  ASSERT_TRUE(executor.Submit([&] { EXPECT_TRUE(executor.Submit([&] { done.Notify(); }).ok()); }).ok());
  done.WaitForNotification();
}

TEST(ParallelForTest, CallsEachIndexOnce) {
  std::vector<std::atomic<int>> calls(1000);
  ParallelFor(calls.size(), 4, [&](size_t index) { ++calls[index]; });
  for (const std::atomic<int>& count : calls) EXPECT_EQ(count, 1);
}

TEST(ParallelForTest, WorksOnSeveralIndexesAtOnce) {
  // Each call waits for the other two.
  auto* all = new absl::Barrier(3);
  ParallelFor(3, 3, [&](size_t) {
    if (all->Block()) delete all;
  });
}

TEST(ParallelForTest, NothingIsNoWork) {
  ParallelFor(0, 8, [](size_t) { FAIL() << "was called"; });
}

TEST(ParallelForTest, OneThreadIsTheCaller) {
  std::vector<size_t> order;
  ParallelFor(3, 1, [&](size_t index) { order.push_back(index); });
  EXPECT_EQ(order, (std::vector<size_t>{0, 1, 2}));
}

}  // namespace

}  // namespace ballast

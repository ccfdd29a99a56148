// SPDX-License-Identifier: Apache-2.0
#include "client/program/completion_queue.h"

#include <set>
#include <thread>

#include "gtest/gtest.h"

namespace ballast {
namespace {

constexpr absl::Duration kTestTimeout = absl::Seconds(30);

TEST(CompletionQueueTest, WaitTakesAResultOnce) {
  CompletionQueue<int> queue;
  const uint64_t operation = queue.Begin("pull of 1 tensor");
  EXPECT_EQ(queue.in_flight(), 1);
  queue.End(operation, 7);
  EXPECT_EQ(queue.in_flight(), 0);
  EXPECT_EQ(queue.Wait(operation, absl::ZeroDuration()).value_or(0), 7);
  EXPECT_EQ(queue.Wait(operation, kTestTimeout).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(queue.WaitAny(absl::ZeroDuration()).operation, 0);
}

TEST(CompletionQueueTest, WaitThatTimesOutNamesTheOperationAndMayBeRepeated) {
  CompletionQueue<int> queue;
  const uint64_t operation = queue.Begin("pull of 1 tensor");
  const absl::Status late = queue.Wait(operation, absl::Milliseconds(1)).status();
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(ReasonOf(late), v1::ERROR_REASON_WAIT_TIMEOUT);
  EXPECT_EQ(late.message(), "timed out after 1ms waiting for the pull of 1 tensor");
  queue.End(operation, absl::UnavailableError("gone"));
  EXPECT_EQ(queue.Wait(operation, absl::ZeroDuration()).status(), absl::UnavailableError("gone"));
}

TEST(CompletionQueueTest, WaitAnyTakesResultsInTheOrderInWhichOperationsEnd) {
  CompletionQueue<int> queue;
  const uint64_t first = queue.Begin("a"), second = queue.Begin("b"), third = queue.Begin("c");
  EXPECT_EQ(queue.WaitAny(absl::Milliseconds(1)).operation, 0);
  queue.End(third, 3);
  queue.End(second, 2);
  queue.End(first, 1);
  EXPECT_EQ(queue.Wait(second, absl::ZeroDuration()).value_or(0), 2);
  CompletionQueue<int>::Completed next = queue.WaitAny(absl::ZeroDuration());
  EXPECT_EQ(next.operation, third);
  EXPECT_EQ(next.result.value_or(0), 3);
  EXPECT_EQ(queue.WaitAny(absl::ZeroDuration()).operation, first);
  EXPECT_EQ(queue.WaitAny(absl::ZeroDuration()).operation, 0);
}

TEST(CompletionQueueTest, WaitAnyPassesOverAnOwnedOperation) {
  CompletionQueue<int> queue;
  const uint64_t owned = queue.Begin("a", true), other = queue.Begin("b");
  queue.End(owned, 1);
  queue.End(other, 2);
  EXPECT_EQ(queue.WaitAny(absl::ZeroDuration()).operation, other);
  EXPECT_EQ(queue.WaitAny(absl::ZeroDuration()).operation, 0);
  EXPECT_EQ(queue.Wait(owned, absl::ZeroDuration()).value_or(0), 1);
}

TEST(CompletionQueueTest, EachOfTwoThreadsThatWaitForAnyGetsOtherResults) {
  CompletionQueue<int> queue;
  std::set<uint64_t> taken[2];
  std::thread waiters[2];
  for (int i = 0; i < 2; ++i) {
    waiters[i] = std::thread([&queue, &taken = taken[i]] {
      while (true) {
        const uint64_t operation = queue.WaitAny(kTestTimeout).operation;
        if (operation == 0) return;
        taken.insert(operation);
      }
    });
  }
  for (int i = 0; i < 100; ++i) queue.End(queue.Begin("push"), i);
  queue.Close();
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(taken[0].size() + taken[1].size(), 100);
  taken[0].merge(taken[1]);
  EXPECT_EQ(taken[0].size(), 100);
}

TEST(CompletionQueueTest, CloseEndsAWaitForAny) {
  CompletionQueue<int> queue;
  std::thread closer([&queue] { queue.Close(); });
  EXPECT_EQ(queue.WaitAny(kTestTimeout).operation, 0);
  EXPECT_TRUE(queue.closed());
  closer.join();
}

}  // namespace
}  // namespace ballast

// SPDX-License-Identifier: Apache-2.0
#include "common/concurrency/parallel_for.h"

#include <atomic>
#include <vector>

#include "absl/synchronization/barrier.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

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

TEST(ParallelForTest, TheMachineHasACore) { EXPECT_GE(CoreCount(), 1); }

}  // namespace
}  // namespace ballast

// SPDX-License-Identifier: Apache-2.0
#include "server/tables/steps/turn_queue.h"

#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(TurnQueueTest, AChangeIsMadeOnceAllTurnsBeforeItAreApplied) {
  TurnQueue turns;
  const uint64_t first = turns.Take(std::nullopt);
  const uint64_t end = turns.Take(TurnQueue::Change{3, 7});
  const uint64_t pause = turns.Take(TurnQueue::Change{4, std::nullopt});
  EXPECT_TRUE(turns.SetApplied(end).empty());
  const std::vector<TurnQueue::Change> due = turns.SetApplied(first);
  ASSERT_EQ(due.size(), 1u);
  EXPECT_EQ(due[0].worker, 3u);
  EXPECT_EQ(due[0].finished, 7u);
  const std::vector<TurnQueue::Change> last = turns.SetApplied(pause);
  ASSERT_EQ(last.size(), 1u);
  EXPECT_EQ(last[0].worker, 4u);
  EXPECT_FALSE(last[0].finished.has_value());
}

TEST(TurnQueueTest, ChangesAreMadeInTheOrderOfTheTurns) {
  TurnQueue turns;
  for (uint64_t i = 0; i < 3; ++i) ASSERT_EQ(turns.Take(TurnQueue::Change{0, i}), i);
  EXPECT_TRUE(turns.SetApplied(2).empty());
  EXPECT_TRUE(turns.SetApplied(1).empty());
  const std::vector<TurnQueue::Change> due = turns.SetApplied(0);
  ASSERT_EQ(due.size(), 3u);
  for (uint64_t i = 0; i < 3; ++i) EXPECT_EQ(due[i].finished, i);
}

TEST(TurnQueueTest, CountsEndsOfStepsUntilTheyAreHandedOut) {
  TurnQueue turns;
  const uint64_t first = turns.Take(std::nullopt);
  const uint64_t end = turns.Take(TurnQueue::Change{3, 7});
  turns.Take(TurnQueue::Change{3, std::nullopt});
  EXPECT_EQ(turns.open_ends(), 1u);
  turns.SetApplied(end);
  EXPECT_EQ(turns.open_ends(), 1u) << "a turn before it is not applied";
  turns.SetApplied(first);
  EXPECT_EQ(turns.open_ends(), 0u);
}

}  // namespace
}  // namespace ballast

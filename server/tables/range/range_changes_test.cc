// SPDX-License-Identifier: Apache-2.0
#include "server/tables/range/range_changes.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "server/tables/range/range_capture.h"
#include "server/tables/range/table_fixture.h"
#include "server/tables/range/table_range.h"

namespace ballast {
namespace {

constexpr int kDim = 2;

// A range with its first 500 hashes, and the values of a copy that only sees the changes.
class RangeChangesTest : public testing::Test {
 protected:
  using Values = std::map<uint64_t, float>;

  void Push(uint64_t hash) {
    const std::vector<uint64_t> hashes{hash};
    const std::vector<float> gradients(kDim, 1.0f);
    BatchPush push{hashes, gradients.data(), {}, 1, 0.5f, false, {1}, &optimizer_, &initializer_};
    BatchOutcome outcome;
    RowGroup group;
    group.count = 1;
    range_.EnterPush(hashes, push.time, outcome);
    range_.Prefetch(hashes, group);
    range_.Find(hashes, group);
    range_.Push(push, group, outcome);
    range_.LeavePush(false, push.time, outcome);
  }

  Values Now() const {
    Values values;
    range_.ForEachRow([&](const RowView& row) { values[row.hash] = row.weights[0]; });
    return values;
  }

  void Follow(const RowImages& changes, Values& values) const {
    for (uint64_t hash : changes.removed) values.erase(hash);
    for (size_t i = 0; i < changes.hashes.size(); ++i) {
      float weight = 0;
      std::memcpy(&weight, &changes.words[i * layout_.image_words()], sizeof(weight));
      values[changes.hashes[i]] = weight;
    }
  }

  // Pushes and removes rows at random.
  void Change(int times) {
    for (int i = 0; i < times; ++i) {
      const uint64_t hash = random_() % 500;
      if (random_() % 3 == 0) {
        range_.Erase(hash);
      } else {
        Push(hash);
      }
    }
  }

  const CountingSgd optimizer_{};
  const LowBitsInitializer initializer_{};
  const RowLayout layout_{kDim, 1};
  PageArena arena_{uint64_t{64} << 20};
  TableRange range_{&arena_, layout_, 1, 0};
  std::mt19937_64 random_{7};
};

TEST_F(RangeChangesTest, ACopyThatSeesOnlyChangesEqualsTheRange) {
  RangeChanges changes;
  range_.Follow(&changes);
  Values copy;
  for (int round = 0; round < 200; ++round) {
    Change(1 + round % 40);
    Follow(range_.TakeChanges(&changes), copy);
    ASSERT_EQ(copy, Now()) << "round " << round;
  }
  range_.Unfollow(&changes);
}

TEST_F(RangeChangesTest, WhatDidNotChangeIsNotTakenAgain) {
  RangeChanges changes;
  range_.Follow(&changes);
  for (uint64_t hash : {1, 2, 3, 2, 2}) Push(hash);
  EXPECT_EQ(range_.TakeChanges(&changes).hashes, (std::vector<uint64_t>{1, 2, 3}));
  Push(2);
  EXPECT_EQ(range_.TakeChanges(&changes).hashes, std::vector<uint64_t>{2});
  EXPECT_TRUE(range_.TakeChanges(&changes).hashes.empty());
  range_.Unfollow(&changes);
}

TEST_F(RangeChangesTest, ARowThatBeganAndWasRemovedIsOnlyRemoved) {
  RangeChanges changes;
  range_.Follow(&changes);
  Push(5);
  range_.Erase(5);
  const RowImages taken = range_.TakeChanges(&changes);
  EXPECT_TRUE(taken.hashes.empty());
  EXPECT_EQ(taken.removed, std::vector<uint64_t>{5});
  range_.Unfollow(&changes);
}

TEST_F(RangeChangesTest, ACaptureOfChangesHasTheRowsAsTheyWereWhenItBegan) {
  RangeChanges changes;
  range_.Follow(&changes);
  Values copy;
  for (int round = 0; round < 100; ++round) {
    Change(1 + round % 40);
    const Values then = Now();
    RangeCapture capture;
    range_.BeginCapture(&capture, &changes);
    Change(round % 60);
    Follow(range_.EndCapture(&capture), copy);
    ASSERT_EQ(copy, then) << "round " << round;
  }
  range_.Unfollow(&changes);
}

}  // namespace
}  // namespace ballast

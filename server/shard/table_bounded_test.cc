// SPDX-License-Identifier: Apache-2.0
// Tests of tables whose workers' clocks bound staleness: policy bounded.
#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/parameter_shard.h"
#include "server/shard/table_step_fixture.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::Optional;

class TableBoundedTest : public TableStepFixture {
 protected:
  static v1::ConsistencyPolicy Bounded(uint32_t steps_ahead, bool scale_by_staleness = false) {
    v1::ConsistencyPolicy policy;
    policy.mutable_bounded()->set_steps_ahead(steps_ahead);
    policy.mutable_bounded()->set_scale_by_staleness(scale_by_staleness);
    return policy;
  }
};

TEST_F(TableBoundedTest, AGradientIsAppliedWhenItComes) {
  Declare(Bounded(1));
  EXPECT_EQ(Push(0, 0, {1, 2}, 4, /*examples=*/3, /*messages_of_step=*/0).applied, 2u);
  EXPECT_THAT(Pull({1, 2}), ElementsAre(-4, -4));
  EXPECT_EQ(shard_.status().tables[0].clock, 0u);
  EXPECT_EQ(Push(0, 0, {1}, 1, 3, /*messages_of_step=*/2).applied, 1u);
  EXPECT_EQ(shard_.status().tables[0].clock, 1u);
}

TEST_F(TableBoundedTest, AWorkerIsHeldAtStepsAheadUntilTheOtherEndsItsStep) {
  Declare(Bounded(2));
  Push(0, 0, {1}, 1);
  Push(0, 1, {1}, 1);
  EXPECT_THAT(Await(2), Optional(absl::OkStatus()));
  Push(0, 2, {1}, 1);
  const auto& end = Await(3);
  EXPECT_EQ(end, std::nullopt);
  // The first of two messages.
  Push(1, 0, {2}, 1, 1, /*messages_of_step=*/2);
  EXPECT_EQ(end, std::nullopt);
  Push(1, 0, {3}, 1, 1, /*messages_of_step=*/0);
  EXPECT_THAT(end, Optional(absl::OkStatus()));
}

TEST_F(TableBoundedTest, AnEndWithoutRowsCounts) {
  Declare(Bounded(0));
  Push(0, 0, {1}, 1);
  const auto& end = Await(1);
  ASSERT_TRUE(shard_.PushRows("job", {1, 1, ++sequence_, 0, 0}, 1, {}).ok());
  EXPECT_THAT(end, Optional(absl::OkStatus()));
}

TEST_F(TableBoundedTest, APauseReleasesThePullsThatWaitForTheWorker) {
  Declare(Bounded(0));
  Push(0, 0, {1}, 1);
  Push(0, 1, {1}, 1);
  const auto& end = Await(2);
  EXPECT_EQ(end, std::nullopt);
  ASSERT_TRUE(shard_.Pause("job", 1, 1).ok());
  EXPECT_THAT(end, Optional(absl::OkStatus()));
}

TEST_F(TableBoundedTest, AWorkerThatReturnsIsWaitedForFromTheSlowestsClock) {
  Declare(Bounded(1));
  ASSERT_TRUE(shard_.Pause("job", 1, 1).ok());
  for (uint64_t step = 0; step < 10; ++step) Push(0, step, {1}, 1);
  // Another incarnation, which begins again at step 0.
  Push(1, 0, {1}, 1, 1, 1, /*incarnation=*/2);
  EXPECT_THAT(Await(11), Optional(absl::OkStatus()));
  Push(0, 10, {1}, 1);
  const auto& end = Await(12);
  EXPECT_EQ(end, std::nullopt);
  Push(1, 1, {1}, 1, 1, 1, /*incarnation=*/2);
  EXPECT_THAT(end, Optional(absl::OkStatus()));
}

TEST_F(TableBoundedTest, WhatAWorkerLeftUnfinishedDoesNotEndItsStep) {
  Declare(Bounded(0));
  Push(1, 0, {1}, 1, 1, /*messages_of_step=*/0);
  ASSERT_TRUE(shard_.Pause("job", 1, 1).ok());
  Push(0, 0, {1}, 1);
  // It returns and sends the step whole.
  Push(1, 0, {1}, 1, 1, /*messages_of_step=*/2, /*incarnation=*/2);
  EXPECT_EQ(shard_.status().tables[0].clock, 1u);
  Push(1, 0, {1}, 1, 1, /*messages_of_step=*/0, /*incarnation=*/2);
  EXPECT_EQ(shard_.status().tables[0].clock, 2u);
}

TEST_F(TableBoundedTest, APullThatTimesOutNamesTheWorkersItWaitedFor) {
  Declare(Bounded(1));
  Push(0, 0, {1}, 1);
  Push(0, 1, {1}, 1);
  const absl::Status end = TimeOut(2);
  EXPECT_EQ(end.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(end.message()),
              HasSubstr("shard 3: pull of rows of \"rows\" at step 2 waits for the gradient of worker 1"));
  EXPECT_THAT(std::string(end.message()), Not(HasSubstr("first_step")));
}

TEST_F(TableBoundedTest, ScalesByTheStalenessOfTheRow) {
  Declare(Bounded(1, /*scale_by_staleness=*/true));
  const std::string ids = IdBytes({1});
  const uint32_t pulled = 0;
  const absl::string_view versions(reinterpret_cast<const char*>(&pulled), sizeof(pulled));
  const std::vector<float> gradients = {1};
  const absl::string_view payload = Bytes(gradients);
  const RowGradientsView view{kTable, ids, /*unordered=*/true, versions, v1::ENCODING_FP32, {&payload, 1}};
  ASSERT_TRUE(shard_.PushRows("job", {0, 1, 1, 0, 1}, 1, {view}).ok());
  EXPECT_EQ(shard_.PushRows("job", {1, 1, 1, 0, 1}, 1, {view})->max_staleness, 1u);
  EXPECT_THAT(Pull({1}), ElementsAre(-1.5)) << "one update behind, so at half the rate";
}

TEST_F(TableBoundedTest, ATableDeclaredAfterTrainingBeganBeginsAtItsFirstStep) {
  Declare(Bounded(1), /*first_step=*/100);
  EXPECT_EQ(Push(1, 99, {1}, 1).applied, 1u);
  EXPECT_EQ(shard_.status().tables[0].clock, 0u) << "a part of that step may have come before the declaration";
  EXPECT_THAT(Await(101), Optional(absl::OkStatus()));
  Push(0, 100, {1}, 1);
  const auto& end = Await(102);
  EXPECT_EQ(end, std::nullopt);
  Push(1, 100, {1}, 1);
  EXPECT_THAT(end, Optional(absl::OkStatus()));
}

TEST_F(TableBoundedTest, CatchesUpWithWhatAWorkerReports) {
  Declare(Bounded(0));
  Push(0, 0, {1}, 1);
  const auto& end = Await(4);
  EXPECT_EQ(shard_.CatchUp("job", 0, 1, {}, {.applied = 0, .ended = 4}).value_or(9), 1u);
  EXPECT_EQ(end, std::nullopt);
  EXPECT_EQ(shard_.CatchUp("job", 1, 1, {}, {.applied = 0, .ended = 4}).value_or(9), 1u);
  EXPECT_THAT(end, Optional(absl::OkStatus()));
  EXPECT_EQ(shard_.status().lost_updates, 3u + 4u);
  EXPECT_EQ(shard_.status().tables[0].clock, 8u);
  EXPECT_EQ(shard_.CatchUp("job", 1, 1, {}, {.applied = 0, .ended = 4}).value_or(9), 0u);
}

TEST_F(TableBoundedTest, ClocksAndOpenStepsAreRestored) {
  Declare(Bounded(1));
  for (uint64_t step = 0; step < 3; ++step) Push(0, step, {1}, 1);
  Push(1, 0, {1}, 1);
  Push(1, 1, {1}, 1, 1, /*messages_of_step=*/2);
  ParameterShard other({.rank = 3, .max_state_bytes = 4 << 20}, &clock_);
  ASSERT_EQ(other.Restore(shard_.Capture([] {})), absl::OkStatus());
  const auto await = [&](uint64_t step) {
    absl::Status end = absl::UnknownError("still waits");
    const WaitList::Ticket ticket = other.AwaitRows("job", {step, std::nullopt}, {kTable}, 0, absl::Seconds(10), false,
                                                    [&](absl::Status status) { end = std::move(status); });
    if (absl::IsUnknown(end)) other.CancelPull(ticket);
    return end.code();
  };
  EXPECT_EQ(await(2), absl::StatusCode::kOk);
  EXPECT_EQ(await(3), absl::StatusCode::kCancelled);
  ASSERT_TRUE(other.PushRows("job", {1, 1, ++sequence_, 1, 1}, 0, {}).ok());
  EXPECT_EQ(await(3), absl::StatusCode::kOk);
  EXPECT_EQ(await(4), absl::StatusCode::kCancelled);
}

TEST_F(TableBoundedTest, AReleasedPullHasTheRowsOfAllMessagesOfTheStep) {
  Declare(Bounded(0));
  constexpr int kMessages = 4;
  constexpr uint64_t kSteps = 200;
  std::vector<uint64_t> ids(64);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = i;
  std::atomic<uint64_t> sequence{0};
  for (uint64_t step = 0; step < kSteps; ++step) {
    ASSERT_TRUE(shard_.PushRows("job", {0, 1, step + 1, step, 0}, 1, {}).ok());
    std::optional<std::vector<float>> seen;
    shard_.AwaitRows("job", {step + 1, std::nullopt}, {kTable}, 0, absl::Seconds(60), false,
                     [&](const absl::Status&) { seen = Pull(ids); });
    ASSERT_FALSE(seen.has_value());
    std::vector<std::thread> threads;
    for (int message = 0; message < kMessages; ++message) {
      threads.emplace_back([&, message] {
        const absl::StatusOr<PushOutcome> outcome =
            Offer({1, 1, ++sequence, step, 1}, ids, 1, message == 0 ? kMessages : 0);
        EXPECT_TRUE(outcome.ok()) << outcome.status();
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_TRUE(seen.has_value());
    for (float value : *seen) ASSERT_EQ(value, -1.0f * kMessages * (step + 1));
  }
}

TEST_F(TableBoundedTest, ATableMayBeBoundedInASynchronousJob) {
  OwnedTable table{SgdTable(kTable, "rows", 1), {}};
  *table.spec.mutable_policy() = Bounded(1);
  table.spans.emplace_back().set_count(4096);
  ASSERT_TRUE(shard_.Declare({"job", SyncPolicy(0), 2, {}}, {}, {table}).ok());
  EXPECT_EQ(Push(0, 0, {1}, 1).applied, 1u);
  EXPECT_THAT(Await(1), Optional(absl::OkStatus()));
}

}  // namespace
}  // namespace ballast

// SPDX-License-Identifier: Apache-2.0
// Tests of tables whose workers push in steps: policy sync.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "common/status/error_reason.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/shard/parameter_shard.h"
#include "server/shard/table_step_fixture.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Optional;

class TableStepTest : public TableStepFixture {
 protected:
  void Declare(uint32_t quorum = 0, uint64_t first_step = 0) {
    TableStepFixture::Declare(SyncPolicy(quorum), first_step);
  }
};

TEST_F(TableStepTest, GradientsWaitForAllWorkersAndAreAveragedByExamples) {
  Declare();
  const PushOutcome first = Push(0, 0, {1, 2}, 4, /*examples=*/3);
  EXPECT_EQ(first.buffered, 2u);
  EXPECT_EQ(first.applied, 0u);
  EXPECT_THAT(Pull({1, 2, 3}), ElementsAre(0, 0, 0));
  const PushOutcome second = Push(1, 0, {2, 3}, 8, /*examples=*/1);
  EXPECT_EQ(second.applied, 3u);
  EXPECT_EQ(second.created, 3u);
  // Divided by the examples of both, whoever has sent the row.
  EXPECT_THAT(Pull({1, 2, 3}), ElementsAre(-3, -5, -2));
}

TEST_F(TableStepTest, APullWaitsForTheStepBeforeIt) {
  Declare();
  EXPECT_THAT(Await(0), Optional(absl::OkStatus()));
  const auto& end = Await(1);
  EXPECT_EQ(end, std::nullopt);
  Push(1, 0, {1}, 1);
  EXPECT_EQ(end, std::nullopt);
  Push(0, 0, {}, 0);
  EXPECT_THAT(end, Optional(absl::OkStatus()));
}

TEST_F(TableStepTest, APullThatTimesOutNamesTheWorkersItWaitedFor) {
  Declare();
  Push(1, 0, {1}, 1);
  const absl::Status end = TimeOut(1);
  EXPECT_EQ(end.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(end.message()),
              HasSubstr("pull of rows of \"rows\" at step 1 waits for the gradient of worker 0"));
}

TEST_F(TableStepTest, AWorkerCountsOnceAllOfItsMessagesHaveCome) {
  Declare();
  Push(0, 0, {1}, 1);
  EXPECT_EQ(Push(1, 0, {1}, 1, 1, /*messages_of_step=*/2).buffered, 1u);
  EXPECT_THAT(Pull({1}), ElementsAre(0));
  EXPECT_EQ(Push(1, 0, {2}, 1, 1, /*messages_of_step=*/0).applied, 2u);
  EXPECT_THAT(Pull({1, 2}), ElementsAre(-1, -0.5));
}

TEST_F(TableStepTest, RefusesAStepThatNobodyCanBeAt) {
  Declare();
  const auto early = Offer({0, 1, ++sequence_, 1, 1}, {1}, 1);
  EXPECT_EQ(early.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(early.status()), v1::ERROR_REASON_STEP_TOO_EARLY);
  EXPECT_THAT(std::string(early.status().message()), HasSubstr("shard 3: \"rows\": worker 0: got rows for step 1"));
}

TEST_F(TableStepTest, APauseCompletesTheStepOfTheOthers) {
  Declare();
  const auto& end = Await(1);
  Push(0, 0, {1}, 1);
  ASSERT_TRUE(shard_.Pause("job", 1, 1).ok());
  EXPECT_THAT(end, Optional(absl::OkStatus()));
  EXPECT_THAT(Pull({1}), ElementsAre(-1));
}

TEST_F(TableStepTest, AnUnfinishedStepOfALostWorkerIsSentAgainWhole) {
  Declare();
  Push(0, 0, {1}, 1);
  Push(1, 0, {1}, 100, 1, /*messages_of_step=*/0);
  // The worker returns with another incarnation.
  Push(1, 0, {1}, 3, 1, /*messages_of_step=*/1, /*incarnation=*/2);
  EXPECT_THAT(Pull({1}), ElementsAre(-2));
}

TEST_F(TableStepTest, WithAQuorumLateGradientsAreDropped) {
  Declare(/*quorum=*/1);
  EXPECT_EQ(Push(0, 0, {1}, 1).applied, 1u);
  EXPECT_EQ(Push(1, 0, {1}, 1).dropped, 1u);
  EXPECT_THAT(Pull({1}), ElementsAre(-1));
  EXPECT_EQ(shard_.status().dropped, 1u);
}

TEST_F(TableStepTest, ATableDeclaredAfterTrainingBeganBeginsAtItsFirstStep) {
  Declare(/*quorum=*/0, /*first_step=*/100);
  // A worker that is still at the step before.
  EXPECT_EQ(Push(1, 99, {1}, 1).dropped, 1u);
  EXPECT_THAT(Await(100), Optional(absl::OkStatus()));
  const auto& end = Await(101);
  Push(0, 100, {1}, 1);
  EXPECT_EQ(end, std::nullopt);
  EXPECT_EQ(Push(1, 100, {1}, 3).applied, 1u);
  EXPECT_THAT(end, Optional(absl::OkStatus()));
  EXPECT_THAT(Pull({1}), ElementsAre(-2));
  // Schedules begin with the table.
  EXPECT_EQ(shard_.status().tables[0].clock, 1u);
  ParameterShard other({.rank = 3, .max_state_bytes = 4 << 20}, &clock_);
  ASSERT_EQ(other.Restore(shard_.Capture([] {})), absl::OkStatus());
  EXPECT_TRUE(other.PushRows("job", {0, 1, 90, 101, 1}, 1, {}).ok());
  EXPECT_EQ(ReasonOf(other.PushRows("job", {0, 1, 91, 102, 1}, 1, {}).status()), v1::ERROR_REASON_STEP_TOO_EARLY);
}

TEST_F(TableStepTest, AWaitForAMissingFirstStepSaysSo) {
  Declare();
  EXPECT_THAT(std::string(TimeOut(100).message()),
              HasSubstr("no step has ended there: a table that is declared after training began needs its first_step"));
  EXPECT_THAT(std::string(Offer({0, 1, ++sequence_, 100, 1}, {1}, 1).status().message()),
              HasSubstr("needs its first_step"));
}

TEST_F(TableStepTest, CatchesUpWithWhatAWorkerReports) {
  Declare();
  Push(0, 0, {1}, 2);
  const auto& end = Await(4);
  // Both workers have ended four steps, of which this shard knows the first half of one.
  EXPECT_EQ(shard_.CatchUp("job", 0, 1, {}, {.applied = 0, .ended = 4}).value_or(9), 1u);
  EXPECT_THAT(Pull({1}), ElementsAre(-2));
  EXPECT_EQ(end, std::nullopt);
  EXPECT_EQ(shard_.CatchUp("job", 1, 1, {}, {.applied = 0, .ended = 4}).value_or(9), 1u);
  EXPECT_THAT(end, Optional(absl::OkStatus()));
  EXPECT_EQ(shard_.status().lost_updates, 3u);
  EXPECT_EQ(shard_.status().tables[0].clock, 4u);
  EXPECT_EQ(Push(0, 4, {1}, 1).buffered, 1u);
  EXPECT_EQ(Push(1, 4, {1}, 1).applied, 1u);
  EXPECT_EQ(ReasonOf(shard_.CatchUp("job", 1, 0, {}, {0, 9}).status()), v1::ERROR_REASON_STALE_INCARNATION);
}

TEST_F(TableStepTest, AReportChangesNothingOnAShardThatCannotHaveLostAnything) {
  Declare();
  EXPECT_EQ(shard_.ReportVersions("job", 0, 1, {}, {.applied = 0, .ended = 4}).value_or(9), 0u);
  EXPECT_EQ(shard_.status().tables[0].clock, 0u);
}

TEST_F(TableStepTest, TheStateBetweenTwoMessagesOfAStepIsRestored) {
  Declare();
  Push(0, 0, {1, 2}, 1);
  Push(1, 0, {1, 2}, 3);
  Push(1, 1, {2, 3}, 5, /*examples=*/2);
  Push(0, 1, {1}, 7, 1, /*messages_of_step=*/2);
  ParameterShard other({.rank = 3, .max_state_bytes = 4 << 20}, &clock_);
  ASSERT_EQ(other.Restore(shard_.Capture([] {})), absl::OkStatus());
  const auto finish = [&](ParameterShard& shard) {
    const std::string ids = IdBytes({3});
    const std::vector<float> gradients = {9};
    const absl::string_view payload = Bytes(gradients);
    const RowGradientsView view{kTable, ids, true, {}, v1::ENCODING_FP32, {&payload, 1}};
    EXPECT_EQ(shard.PushRows("job", {0, 1, sequence_ + 1, 1, 1}, 0, {view})->applied, 3u);
    const MessageRows order = MessageRows::Of(IdBytes({1, 2, 3}), kTable, true).value();
    const absl::StatusOr<PulledRows> rows = shard.PullRows("job", kTable, order, v1::RowQuery::MISSING_INITIAL);
    const absl::Span<const float> values = rows->values.values();
    return std::vector<float>(values.begin(), values.end());
  };
  const std::vector<float> want = finish(shard_);
  EXPECT_EQ(finish(other), want);
  EXPECT_EQ(shard_.status().tables[0].clock, 2u);
  EXPECT_EQ(other.status().tables[0].clock, 2u);
}

}  // namespace
}  // namespace ballast

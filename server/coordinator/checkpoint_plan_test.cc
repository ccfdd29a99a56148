// SPDX-License-Identifier: Apache-2.0
#include "gtest/gtest.h"
#include "server/coordinator/checkpoint_control.h"

namespace ballast {
namespace {

using Phase = CheckpointPlan::Phase;

constexpr absl::Time kStart = absl::UnixEpoch();

v1::CheckpointPart Part(uint64_t id, v1::CheckpointPart::Stage stage) {
  v1::CheckpointPart part;
  part.set_id(id);
  part.set_stage(stage);
  if (stage == v1::CheckpointPart::STAGE_WRITTEN) part.set_bytes(8);
  if (stage == v1::CheckpointPart::STAGE_FAILED) part.set_failure("the disk is full");
  return part;
}

class CheckpointPlanTest : public testing::Test {
 protected:
  // Advances the plan to the capture of every shard.
  void Begin() {
    now_ += absl::Seconds(60);
    for (uint32_t server : {0u, 1u}) plan_.OnHeartbeat(server, now_);
    plan_.Capture({}, now_);
    ASSERT_EQ(plan_.phase(), Phase::kCapturing);
  }

  absl::Time now_ = kStart;
  CheckpointPlan plan_{{.interval = absl::Seconds(60), .servers = 2, .first_id = 7}, kStart};
};

TEST_F(CheckpointPlanTest, DataIsHeldBackOnlyOnceAllServersCallOften) {
  plan_.OnHeartbeat(0, kStart + absl::Seconds(59));
  EXPECT_EQ(plan_.phase(), Phase::kIdle);
  plan_.OnHeartbeat(0, kStart + absl::Seconds(60));
  EXPECT_TRUE(plan_.hastens());
  EXPECT_FALSE(plan_.holds());
  plan_.OnHeartbeat(1, kStart + absl::Seconds(61));
  EXPECT_TRUE(plan_.holds());
}

TEST_F(CheckpointPlanTest, TrainingGoesOnWhileShardsAreWritten) {
  Begin();
  EXPECT_EQ(plan_.Report(0, Part(7, v1::CheckpointPart::STAGE_CAPTURED), now_), std::nullopt);
  EXPECT_TRUE(plan_.holds());
  EXPECT_EQ(plan_.Report(1, Part(7, v1::CheckpointPart::STAGE_CAPTURED), now_), std::nullopt);
  EXPECT_EQ(plan_.phase(), Phase::kWriting);
  EXPECT_FALSE(plan_.holds());
  EXPECT_FALSE(plan_.hastens());
  EXPECT_EQ(plan_.Report(1, Part(7, v1::CheckpointPart::STAGE_WRITTEN), now_), std::nullopt);
  EXPECT_EQ(plan_.Report(0, Part(7, v1::CheckpointPart::STAGE_WRITTEN), now_), std::nullopt);
  EXPECT_EQ(plan_.phase(), Phase::kCommitting);
  EXPECT_EQ(plan_.manifest().files(1).name(), "checkpoint-00000007.shard-1-of-2");
  plan_.End(now_);
  EXPECT_EQ(plan_.phase(), Phase::kIdle);
  EXPECT_EQ(plan_.id(), 8);
}

TEST_F(CheckpointPlanTest, AShardThatIsWrittenBeforeTheLastIsCapturedCounts) {
  Begin();
  EXPECT_EQ(plan_.Report(0, Part(7, v1::CheckpointPart::STAGE_WRITTEN), now_), std::nullopt);
  EXPECT_TRUE(plan_.holds());
  EXPECT_EQ(plan_.Report(1, Part(7, v1::CheckpointPart::STAGE_WRITTEN), now_), std::nullopt);
  EXPECT_EQ(plan_.phase(), Phase::kCommitting);
}

TEST_F(CheckpointPlanTest, WordOfAnotherCheckpointIsPassedOver) {
  Begin();
  EXPECT_EQ(plan_.Report(0, Part(6, v1::CheckpointPart::STAGE_FAILED), now_), std::nullopt);
  EXPECT_EQ(plan_.Report(0, Part(6, v1::CheckpointPart::STAGE_WRITTEN), now_), std::nullopt);
  EXPECT_EQ(plan_.Report(9, Part(7, v1::CheckpointPart::STAGE_WRITTEN), now_), std::nullopt);
  EXPECT_EQ(plan_.phase(), Phase::kCapturing);
}

TEST_F(CheckpointPlanTest, AFailureIsSaidAndTheNextIsDueInAnInterval) {
  Begin();
  EXPECT_EQ(plan_.Report(1, Part(7, v1::CheckpointPart::STAGE_FAILED), now_), "server 1: the disk is full");
  plan_.End(now_);
  plan_.OnHeartbeat(0, now_ + absl::Seconds(59));
  EXPECT_EQ(plan_.phase(), Phase::kIdle);
  plan_.OnHeartbeat(0, now_ + absl::Seconds(60));
  EXPECT_EQ(plan_.phase(), Phase::kAnnounced);
}

TEST_F(CheckpointPlanTest, NobodyStandsStillForLong) {
  Begin();
  plan_.Report(0, Part(7, v1::CheckpointPart::STAGE_CAPTURED), now_);
  EXPECT_EQ(plan_.Overdue(now_ + absl::Seconds(59)), std::nullopt);
  EXPECT_EQ(plan_.Overdue(now_ + absl::Seconds(60)), "server 1 did not finish its part within 1m");
}

TEST_F(CheckpointPlanTest, ARequestIsForTheStateOfNow) {
  EXPECT_EQ(plan_.Request(), 7);
  plan_.OnHeartbeat(0, kStart);
  EXPECT_EQ(plan_.phase(), Phase::kAnnounced) << "at once";
  EXPECT_EQ(plan_.Request(), 7) << "nothing is captured yet";
  Begin();
  for (uint32_t server : {0u, 1u}) plan_.Report(server, Part(7, v1::CheckpointPart::STAGE_CAPTURED), now_);
  EXPECT_TRUE(plan_.hastens()) << "somebody waits for it";
  EXPECT_EQ(plan_.Request(), 8) << "training may have gone on since";
  plan_.End(now_);
  plan_.OnHeartbeat(0, now_);
  EXPECT_EQ(plan_.phase(), Phase::kAnnounced);
  plan_.End(now_);
  plan_.OnHeartbeat(0, now_);
  EXPECT_EQ(plan_.phase(), Phase::kIdle) << "a failed one is not repeated";
}

}  // namespace
}  // namespace ballast

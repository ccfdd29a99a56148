// SPDX-License-Identifier: Apache-2.0
// Tests of a shard store on disks that are full or fail, and after the death of its machine.

#include <memory>
#include <random>

#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "server/durability/shard_store_fixture.h"

namespace ballast {
namespace {

TEST_F(ShardStoreTest, APullThatWaitedForValuesGoesOnOnceTheyAreOnTheDisk) {
  for (const bool disk_fails : {false, true}) {
    LossyFileSystem files;
    Process process(NewFolder(), &files);
    OwnedTensor tensor = Tensor(1, "w", 2);
    tensor.spec.mutable_initializer()->mutable_provided();
    ASSERT_THAT(process.shard.Declare(Job(), {tensor}), IsOk());
    absl::Notification ended;
    absl::Status pulled;
    process.shard.AwaitPull("job", {.step = 0}, {{1, 0}}, absl::Seconds(30), /*by_reader=*/false,
                            [&](absl::Status status) {
                              pulled = std::move(status);
                              ended.Notify();
                            });
    files.FailSyncs(disk_fails);
    const std::vector<float> values = {1, 2};
    const absl::string_view payload = BytesOf(values);
    ASSERT_THAT(process.shard.SetValues("job", {{{1, 0}, v1::ENCODING_FP32, {&payload, 1}}}), IsOk());
    ASSERT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(20)));
    EXPECT_EQ(pulled.code(), disk_fails ? absl::StatusCode::kUnavailable : absl::StatusCode::kOk) << pulled;
    EXPECT_EQ(process.store->status().synced >= 3, !disk_fails) << "header, declaration, values";
  }
}

TEST_F(ShardStoreTest, WalSyncLosesNothingThatWasAcknowledgedWhenTheMachineDies) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 30; ++round) {
    SCOPED_TRACE(round);
    LossyFileSystem files;
    folder_ = NewFolder();
    StartJob(Job(v1::Durability::WAL_SYNC), &files, /*log_bytes=*/20000);
    const uint64_t pushes = 1 + random() % 30;
    for (uint64_t i = 1; i <= pushes; ++i) ASSERT_TRUE(process_->PushDurably(0, i, i - 1, i).ok());
    // The push is not awaited.
    ASSERT_TRUE(process_->Push(0, pushes + 1, pushes, 1).ok());
    files.LoseUnsyncedFromNowOn();
    process_.reset();
    ASSERT_TRUE(files.LoseUnsynced(random()).ok());
    const auto seen = Start().shard.status().workers_pushes[0];
    EXPECT_GE(seen.highest, pushes);
    EXPECT_EQ(seen.accepted, seen.highest);
  }
}

// Leaves a directory of a synchronous job whose machine failed after both workers had seen ten steps, of which four
// were on the disk.
void LoseSixSteps(const std::string& folder) {
  LossyFileSystem files;
  {
    JobConfig job = Job();
    job.policy.mutable_sync();
    Process process(folder, &files);
    process.Declare(job);
    for (uint64_t step = 0; step < 10; ++step) {
      for (uint32_t worker : {0u, 1u}) EXPECT_TRUE(process.Push(worker, step + 1, step, 1).ok());
      if (step != 3) continue;
      absl::Notification done;
      process.shard.AwaitSynced([&](absl::Status status) {
        EXPECT_TRUE(status.ok()) << status;
        done.Notify();
      });
      done.WaitForNotification();
      files.LoseUnsyncedFromNowOn();
    }
  }
  EXPECT_TRUE(files.LoseUnsynced(1).ok());
}

TEST_F(ShardStoreTest, AShardThatLostItsLastSecondGoesOnAtTheStepOfItsWorkers) {
  LoseSixSteps(folder_);
  Process& process = Start();
  EXPECT_EQ(process.Version(), 4);
  // No worker has reported versions: the push of step 10 itself proves that nine updates were seen.
  ASSERT_TRUE(process.Push(0, 11, 10, 1).ok());
  EXPECT_EQ(process.Version(), 10);
  const absl::StatusOr<PushOutcome> last = process.Push(1, 11, 10, 1);
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(last->applied, 2);
  EXPECT_EQ(process.Version(), 11);
  EXPECT_EQ(process.shard.status().lost_updates, 2 * 6);
  // The catch-up is in the log.
  ExpectRecovers(End());
}

TEST_F(ShardStoreTest, AppliesARetryOfWhatWasLostAndNoDuplicateOfWhatWasKept) {
  LoseSixSteps(folder_);
  Process& process = Start();
  EXPECT_EQ(process.Version(), 4);
  const absl::StatusOr<PushOutcome> kept = process.Push(0, 4, 3, 1);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_TRUE(kept->duplicate);
  // Worker 1 got no response to its last push. Worker 0 did, and has seen version 10.
  const absl::StatusOr<PushOutcome> again = process.Push(1, 10, 9, 1);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(again->duplicate);
  EXPECT_EQ(again->buffered, 2);
  absl::Status waited = absl::UnknownError("still waits");
  process.shard.AwaitPull("job", {10, 1}, {{1, 0}, {2, 0}}, absl::Hours(1), false, [&](absl::Status s) { waited = s; });
  EXPECT_EQ(waited.code(), absl::StatusCode::kUnknown);
  EXPECT_THAT(process.shard.ReportVersions("job", 0, 1, {{{1, 0}, 10, 10}, {{2, 0}, 10, 10}}), IsOk());
  EXPECT_TRUE(waited.ok()) << waited;
  EXPECT_EQ(process.Version(), 10);
  EXPECT_EQ(process.shard.ReportVersions("job", 0, 1, {{{1, 0}, 10, 10}}).value_or(9), 0);
}

TEST_F(ShardStoreTest, AShardThatCannotHaveLostAnythingRefusesAStepThatItHasNotSeen) {
  JobConfig job = Job(v1::Durability::WAL_SYNC);
  job.policy.mutable_sync();
  ASSERT_TRUE(StartJob(job).PushDurably(0, 1, 0, 1).ok());
  Process& process = Start();
  EXPECT_EQ(process.Push(0, 2, 5, 1).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(process.shard.ReportVersions("job", 0, 1, {{{1, 0}, 10, 10}}).value_or(9), 0);
  EXPECT_EQ(process.Version(), 0);
}

TEST_F(ShardStoreTest, AFullDiskRefusesPushesAndTakesThemAgainLater) {
  Process& process = StartJob(Job(), &files_);
  ASSERT_TRUE(process.Push(0, 1, 0, 1).ok());
  files_.SetFree(100);
  EXPECT_THAT(process.Push(0, 2, 1, 1), Fails(absl::StatusCode::kResourceExhausted, "No space left on device"));
  EXPECT_TRUE(process.shard.Pull({1, 0}, std::nullopt).ok());
  EXPECT_EQ(process.shard.status().workers_pushes[0].accepted, 1);
  files_.SetFree(1 << 20);
  const absl::StatusOr<PushOutcome> again = process.Push(0, 2, 1, 1);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(again->duplicate);
}

TEST_F(ShardStoreTest, ALogThatCouldNotBeBegunDoesNotComeBackWhenTheMachineDies) {
  files_.ForgetRemovals();
  Process& process = StartJob(Job(), &files_);
  ASSERT_TRUE(process.Push(0, 1, 0, 1).ok());
  files_.SetFree(10);
  EXPECT_EQ(process.store->TakeSnapshot().code(), absl::StatusCode::kResourceExhausted);
  files_.SetFree(1 << 20);
  // The previous file continues at the position at which the new one would have started.
  ASSERT_TRUE(process.Push(0, 2, 1, 1).ok());
  const std::string before = End();
  ASSERT_TRUE(files_.LoseUnsynced(1).ok());
  ExpectRecovers(before);
}

TEST_F(ShardStoreTest, WritesNoMoreBesideALogThatItCannotRemove) {
  Process& process = StartJob(Job(), &files_);
  ASSERT_TRUE(process.Push(0, 1, 0, 1).ok());
  const std::string before = process.Fingerprint();
  files_.SetFree(10);
  files_.FailRenames();
  EXPECT_THAT(process.store->TakeSnapshot(), Fails(absl::StatusCode::kUnavailable, "cannot be removed"));
  files_.SetFree(1 << 20);
  EXPECT_EQ(process.Push(0, 2, 1, 1).status().code(), absl::StatusCode::kUnavailable);
  process.failed.WaitForNotification();
  ExpectRecovers(before);
}

TEST_F(ShardStoreTest, ASyncThatFailsIsNoAcknowledgement) {
  Process& process = StartJob(Job(v1::Durability::WAL_SYNC), &files_);
  ASSERT_TRUE(process.PushDurably(0, 1, 0, 1).ok());
  files_.FailSyncs(true);
  EXPECT_EQ(process.PushDurably(0, 2, 1, 1).code(), absl::StatusCode::kUnavailable);
  process.failed.WaitForNotification();
  EXPECT_EQ(process.PushDurably(0, 3, 2, 1).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ballast

// SPDX-License-Identifier: Apache-2.0
// How a shard store behaves on disks that are full or fail, and after the death of its machine.

#include <memory>
#include <random>

#include "absl/strings/match.h"
#include "absl/synchronization/notification.h"
#include "common/storage/testing/lossy_file_system.h"
#include "gtest/gtest.h"
#include "server/durability/shard_store_fixture.h"

namespace ballast {
namespace {

TEST(ShardStoreTest, APullThatWaitedForValuesGoesOnOnceTheyAreOnTheDisk) {
  for (const bool disk_fails : {false, true}) {
    const std::string folder = NewFolder();
    LossyFileSystem files;
    Process process(folder, &files);
    OwnedTensor tensor = Tensor(1, "w", 2);
    tensor.spec.mutable_initializer()->mutable_provided();
    ASSERT_TRUE(process.shard.Declare(Job(v1::Durability::WAL), {tensor}).ok());
    absl::Notification ended;
    absl::Status pulled;
    process.shard.AwaitPull("job", {.step = 0}, {{1, 0}}, absl::Seconds(30), /*by_reader=*/false,
                            [&](absl::Status status) {
                              pulled = std::move(status);
                              ended.Notify();
                            });
    files.FailSyncs(disk_fails);
    const std::vector<float> values = {1, 2};
    const absl::string_view payload(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
    ASSERT_TRUE(process.shard.SetValues("job", {{{1, 0}, v1::ENCODING_FP32, {&payload, 1}}}).ok());
    ASSERT_TRUE(ended.WaitForNotificationWithTimeout(absl::Seconds(20)));
    EXPECT_EQ(pulled.code(), disk_fails ? absl::StatusCode::kUnavailable : absl::StatusCode::kOk) << pulled;
    EXPECT_EQ(process.store->status().synced >= 3, !disk_fails) << "header, declaration, values";
  }
}

TEST(ShardStoreTest, WalSyncLosesNothingThatWasAcknowledgedWhenTheMachineDies) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 30; ++round) {
    LossyFileSystem files;
    const std::string folder = NewFolder();
    uint64_t acknowledged = 0;
    {
      Process process(folder, &files, /*log_bytes=*/20000);
      process.Declare(Job(v1::Durability::WAL_SYNC));
      const uint64_t pushes = 1 + random() % 30;
      for (uint64_t i = 1; i <= pushes; ++i) {
        ASSERT_TRUE(process.PushDurably(0, i, i - 1, i).ok());
        acknowledged = i;
      }
      // The push is not awaited.
      ASSERT_TRUE(process.Push(0, pushes + 1, pushes, 1).ok());
      files.LoseUnsyncedFromNowOn();
    }
    ASSERT_TRUE(files.LoseUnsynced(random()).ok());
    Process process(folder);
    ASSERT_TRUE(process.status.ok()) << round << ": " << process.status;
    EXPECT_GE(process.shard.status().workers_pushes[0].highest, acknowledged) << round;
    EXPECT_EQ(process.shard.status().workers_pushes[0].accepted, process.shard.status().workers_pushes[0].highest)
        << round;
  }
}

// A synchronous job of two workers whose machine fails after both have seen ten steps and `synced` are on the disk.
class LostSecond {
 public:
  explicit LostSecond(uint64_t synced) {
    job_.policy.mutable_sync();
    Process process(folder_, &files_);
    process.Declare(job_);
    for (uint64_t step = 0; step < 10; ++step) {
      for (uint32_t worker : {0u, 1u}) EXPECT_TRUE(process.Push(worker, step + 1, step, 1).ok());
      if (step + 1 == synced) {
        absl::Notification done;
        process.shard.AwaitSynced([&](absl::Status status) {
          EXPECT_TRUE(status.ok()) << status;
          done.Notify();
        });
        done.WaitForNotification();
        files_.LoseUnsyncedFromNowOn();
      }
    }
  }

  std::unique_ptr<Process> ComeBack() {
    EXPECT_TRUE(files_.LoseUnsynced(1).ok());
    auto process = std::make_unique<Process>(folder_);
    EXPECT_TRUE(process->status.ok()) << process->status;
    EXPECT_EQ(process->Version(), 4);
    return process;
  }

  const std::string& folder() const { return folder_; }

 private:
  const std::string folder_ = NewFolder();
  LossyFileSystem files_;
  JobConfig job_ = Job(v1::Durability::WAL);
};

TEST(ShardStoreTest, AShardThatLostItsLastSecondGoesOnAtTheStepOfItsWorkers) {
  LostSecond lost(4);
  std::string before;
  {
    auto process = lost.ComeBack();
    // No worker has reported versions: the push of step 10 itself proves that nine updates were seen.
    ASSERT_TRUE(process->Push(0, 11, 10, 1).ok());
    EXPECT_EQ(process->Version(), 10);
    const absl::StatusOr<PushOutcome> last = process->Push(1, 11, 10, 1);
    ASSERT_TRUE(last.ok()) << last.status();
    EXPECT_EQ(last->applied, 2);
    EXPECT_EQ(process->Version(), 11);
    EXPECT_EQ(process->shard.status().lost_updates, 2 * 6);
    before = process->Fingerprint();
  }
  Process process(lost.folder());
  ASSERT_TRUE(process.status.ok()) << process.status;
  EXPECT_EQ(process.Fingerprint(), before) << "the catch-up is in the log";
}

TEST(ShardStoreTest, AppliesARetryOfWhatWasLostAndNoDuplicateOfWhatWasKept) {
  auto process = LostSecond(4).ComeBack();
  const absl::StatusOr<PushOutcome> kept = process->Push(0, 4, 3, 1);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_TRUE(kept->duplicate);
  // Worker 1 got no response to its last push. Worker 0 did, and has seen version 10.
  const absl::StatusOr<PushOutcome> again = process->Push(1, 10, 9, 1);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(again->duplicate);
  EXPECT_EQ(again->buffered, 2);
  absl::Status waited = absl::UnknownError("still waits");
  process->shard.AwaitPull("job", {10, 1}, {{1, 0}, {2, 0}}, absl::Hours(1), false,
                           [&](absl::Status s) { waited = s; });
  EXPECT_EQ(waited.code(), absl::StatusCode::kUnknown);
  const absl::StatusOr<uint32_t> raised =
      process->shard.ReportVersions("job", 0, 1, {{{1, 0}, 10, 10}, {{2, 0}, 10, 10}});
  ASSERT_TRUE(raised.ok()) << raised.status();
  EXPECT_TRUE(waited.ok()) << waited;
  EXPECT_EQ(process->Version(), 10);
  EXPECT_EQ(process->shard.ReportVersions("job", 0, 1, {{{1, 0}, 10, 10}}).value_or(9), 0);
}

TEST(ShardStoreTest, AShardThatCannotHaveLostAnythingRefusesAStepThatItHasNotSeen) {
  const std::string folder = NewFolder();
  JobConfig job = Job(v1::Durability::WAL_SYNC);
  job.policy.mutable_sync();
  {
    Process process(folder);
    process.Declare(job);
    ASSERT_TRUE(process.PushDurably(0, 1, 0, 1).ok());
  }
  Process process(folder);
  EXPECT_EQ(process.Push(0, 2, 5, 1).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(process.shard.ReportVersions("job", 0, 1, {{{1, 0}, 10, 10}}).value_or(9), 0);
  EXPECT_EQ(process.Version(), 0);
}

TEST(ShardStoreTest, AFullDiskRefusesPushesAndTakesThemAgainLater) {
  LossyFileSystem files;
  Process process(NewFolder(), &files);
  process.Declare(Job(v1::Durability::WAL));
  ASSERT_TRUE(process.Push(0, 1, 0, 1).ok());
  const std::string before = process.Fingerprint();
  files.SetFree(100);
  const absl::Status full = process.Push(0, 2, 1, 1).status();
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(full.message(), "No space left on device")) << full;
  EXPECT_TRUE(process.shard.Pull({1, 0}, std::nullopt).ok());
  EXPECT_EQ(process.shard.status().workers_pushes[0].accepted, 1);
  files.SetFree(1 << 20);
  const absl::StatusOr<PushOutcome> again = process.Push(0, 2, 1, 1);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(again->duplicate);
}

TEST(ShardStoreTest, ALogThatCouldNotBeBegunDoesNotComeBackWhenTheMachineDies) {
  const std::string folder = NewFolder();
  LossyFileSystem files;
  files.ForgetRemovals();
  std::string before;
  {
    Process process(folder, &files);
    process.Declare(Job(v1::Durability::WAL));
    ASSERT_TRUE(process.Push(0, 1, 0, 1).ok());
    files.SetFree(10);
    EXPECT_EQ(process.store->TakeSnapshot().code(), absl::StatusCode::kResourceExhausted);
    files.SetFree(1 << 20);
    // The previous file continues at the position at which the new one would have started.
    ASSERT_TRUE(process.Push(0, 2, 1, 1).ok());
    before = process.Fingerprint();
  }
  ASSERT_TRUE(files.LoseUnsynced(1).ok());
  Process process(folder);
  ASSERT_TRUE(process.status.ok()) << process.status;
  EXPECT_EQ(process.Fingerprint(), before);
}

TEST(ShardStoreTest, WritesNoMoreBesideALogThatItCannotRemove) {
  const std::string folder = NewFolder();
  LossyFileSystem files;
  std::string before;
  {
    Process process(folder, &files);
    process.Declare(Job(v1::Durability::WAL));
    ASSERT_TRUE(process.Push(0, 1, 0, 1).ok());
    before = process.Fingerprint();
    files.SetFree(10);
    files.FailRenames();
    const absl::Status status = process.store->TakeSnapshot();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "cannot be removed")) << status;
    files.SetFree(1 << 20);
    EXPECT_EQ(process.Push(0, 2, 1, 1).status().code(), absl::StatusCode::kUnavailable);
    process.failed.WaitForNotification();
  }
  Process process(folder);
  ASSERT_TRUE(process.status.ok()) << process.status;
  EXPECT_EQ(process.Fingerprint(), before);
}

TEST(ShardStoreTest, ASyncThatFailsIsNoAcknowledgement) {
  LossyFileSystem files;
  Process process(NewFolder(), &files);
  process.Declare(Job(v1::Durability::WAL_SYNC));
  ASSERT_TRUE(process.PushDurably(0, 1, 0, 1).ok());
  files.FailSyncs(true);
  EXPECT_EQ(process.PushDurably(0, 2, 1, 1).code(), absl::StatusCode::kUnavailable);
  process.failed.WaitForNotification();
  EXPECT_EQ(process.PushDurably(0, 3, 2, 1).code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace ballast

// SPDX-License-Identifier: Apache-2.0
// A coordinator whose disk blocks, and one whose process was stopped.
#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/storage/checkpoint_folder.h"
#include "common/storage/testing/lossy_file_system.h"
#include "common/storage/testing/slow_file_system.h"
#include "server/coordinator/coordinator.h"
#include "server/coordinator/coordinator_store.h"
#include "server/coordinator/testing/job_fixture.h"

namespace ballast {
namespace {

using testing::Test;

class CoordinatorDiskTest : public Test {
 protected:
  CoordinatorDiskTest() {
    std::filesystem::remove_all(folder_.path());
    std::filesystem::create_directories(folder_.path());
    store_ = *CoordinatorStore::Open(&files_, folder_.path() + "/coordinator", &clock_);
  }
  // Otherwise the coordinator's thread never ends.
  ~CoordinatorDiskTest() override { files_.Release(); }

  static v1::Job Job(v1::Durability::Mode mode) {
    v1::Job job = SyncJob(mode);
    job.mutable_training()->set_epochs(100);
    return job;
  }

  void Gather(v1::Durability::Mode mode) {
    const JobOptions job{
        .servers = 1, .workers = 2, .longest_silence = absl::Milliseconds(1200), .first_checkpoint = 1};
    coordinator_ = std::make_unique<Coordinator>(
        Coordinator::Options{.job = job, .journal = store_.get(), .checkpoints = &folder_, .disk_thread = true},
        &clock_);
    server_ = *coordinator_->Join(ServerAt(0));
    worker0_ = *coordinator_->Join(WorkerOf(0, Job(mode), 20, "first"));
    // Asks for data too early, which says that the model is declared.
    coordinator_->CancelWait(coordinator_->AcquireLease(worker0_, {}, absl::Seconds(1), [](auto) {}));
    worker1_ = *coordinator_->Join(WorkerOf(1, Job(mode), 20, "second"));
    absl::Notification saved;
    coordinator_->AwaitSaved([&](const absl::Status&) { saved.Notify(); });
    saved.WaitForNotification();
  }

  // True if the response to a heartbeat may be sent at once.
  bool Told(const Membership::Id& id) {
    const absl::StatusOr<Coordinator::HeartbeatReply> reply = coordinator_->Heartbeat(id);
    EXPECT_TRUE(reply.ok()) << reply.status();
    // Shared, because a call that waits for the disk comes after this function.
    const auto told = std::make_shared<std::atomic<bool>>(false);
    coordinator_->AwaitSaved(reply->change, [told](const absl::Status& status) { *told = status.ok(); });
    return *told;
  }

  // All members send heartbeats every half second.
  void Pass(absl::Duration time, const std::vector<Membership::Id>& heard) {
    for (; time > absl::ZeroDuration(); time -= absl::Milliseconds(500)) {
      clock_.Advance(absl::Milliseconds(500));
      for (const Membership::Id& id : heard) ASSERT_TRUE(coordinator_->Heartbeat(id).ok());
    }
  }

  // A minute passes, and the server writes its shard of checkpoint 1; returns its report.
  v1::CheckpointPart WriteShard() {
    Pass(absl::Seconds(61), {server_, worker0_, worker1_});
    const uint64_t id = coordinator_->Heartbeat(server_)->capture_checkpoint_id;
    EXPECT_EQ(id, 1u);
    std::ofstream(folder_.PathOf(CheckpointFolder::ShardFileName(id, 0, 1))) << "weights";
    v1::CheckpointPart part;
    part.set_id(id);
    part.set_stage(v1::CheckpointPart::STAGE_WRITTEN);
    part.set_bytes(7);
    return part;
  }

  ManualClock clock_;
  SlowFileSystem files_;
  CheckpointFolder folder_{&files_, testing::TempDir() + "/coordinator-disk"};
  std::unique_ptr<CoordinatorStore> store_;
  std::unique_ptr<Coordinator> coordinator_;
  Membership::Id server_, worker0_, worker1_;
};

TEST_F(CoordinatorDiskTest, WhileTheJournalStandsStillOnlyWhatDependsOnItWaits) {
  Gather(v1::Durability::WAL);
  files_.Block();
  absl::Notification granted;
  std::optional<uint64_t> lease;
  coordinator_->AcquireLease(worker0_, {}, absl::Seconds(1), [&](auto grant) {
    lease = grant->lease->id;
    granted.Notify();
  });
  files_.AwaitBlocked(1);
  EXPECT_FALSE(granted.HasBeenNotified()) << "another coordinator could grant it again";
  EXPECT_TRUE(Told(server_));
  EXPECT_TRUE(Told(worker1_));
  EXPECT_EQ(coordinator_->Describe().members_size(), 3);
  EXPECT_EQ(coordinator_->progress().state(), v1::JOB_STATE_RUNNING);
  EXPECT_FALSE(coordinator_->Join(WorkerOf(7, Job(v1::Durability::WAL), 20, "third")).ok());

  EXPECT_TRUE(coordinator_->Leave(worker1_, "its device failed", true).ok());
  EXPECT_FALSE(Told(server_)) << "it would report a loss that is not saved";
  files_.Release();
  granted.WaitForNotification();
  EXPECT_EQ(lease, 1u);
  coordinator_.reset();
}

TEST_F(CoordinatorDiskTest, HeartbeatsGoOnWhileACheckpointIsCommittedToADiskThatStandsStill) {
  Gather(v1::Durability::CHECKPOINT);
  const v1::CheckpointPart part = WriteShard();
  files_.Block();
  EXPECT_TRUE(coordinator_->Heartbeat(server_, part).ok());
  files_.AwaitBlocked(1);
  Pass(absl::Seconds(10), {server_, worker0_, worker1_});
  bool granted = false;
  coordinator_->AcquireLease(worker0_, {}, absl::Seconds(1), [&](auto grant) { granted = grant->lease.has_value(); });
  EXPECT_TRUE(granted) << "training continues";
  EXPECT_FALSE(folder_.Newest().ok());
  files_.Release();
  coordinator_.reset();
  EXPECT_EQ(folder_.Newest()->id, 1u);
}

TEST_F(CoordinatorDiskTest, AWholeCheckpointIsCommittedThoughTheJobFailsWhileTheDiskIsBusy) {
  Gather(v1::Durability::WAL);
  const v1::CheckpointPart part = WriteShard();
  files_.Block();
  ASSERT_TRUE(coordinator_->ReportProgress(worker0_, {}, nullptr).ok());
  coordinator_->AwaitSaved([](const absl::Status&) {});
  files_.AwaitBlocked(1);
  EXPECT_TRUE(coordinator_->Heartbeat(server_, part).ok());
  ASSERT_TRUE(coordinator_->Leave(worker1_, "its loss is not finite").ok());
  EXPECT_EQ(coordinator_->Heartbeat(server_)->state, v1::JOB_STATE_FAILED);
  files_.Release();
  coordinator_.reset();
  const auto newest = folder_.Newest();
  ASSERT_TRUE(newest.ok()) << newest.status();
  EXPECT_EQ(newest->id, 1u);
  const auto manifest = ReadManifest(newest->manifest_path);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->job().name(), "job");
}

TEST_F(CoordinatorDiskTest, ItsOwnPauseIsNoMembersSilence) {
  Gather(v1::Durability::NONE);
  Pass(absl::Seconds(2), {server_, worker0_});
  // No heartbeat arrived at all: the process was stopped.
  clock_.Advance(absl::Seconds(30));
  EXPECT_TRUE(coordinator_->Heartbeat(server_)->absent.empty());
  EXPECT_TRUE(coordinator_->Heartbeat(worker0_).ok());
  EXPECT_EQ(coordinator_->progress().state(), v1::JOB_STATE_RUNNING);
  // The two seconds for which worker 1 was silent before the stop still count.
  Pass(absl::Milliseconds(500), {server_, worker0_});
  EXPECT_TRUE(coordinator_->Heartbeat(server_)->absent.empty());
  Pass(absl::Milliseconds(500), {server_, worker0_});
  EXPECT_EQ(coordinator_->Heartbeat(server_)->absent.size(), 1u);
}

TEST_F(CoordinatorDiskTest, ItsOwnPauseIsNotTakenOffTheTimeToReturn) {
  Gather(v1::Durability::WAL);
  ASSERT_TRUE(coordinator_->Leave(worker0_, "killed by signal 9", true).ok());
  ASSERT_TRUE(coordinator_->Leave(worker1_, "killed by signal 9", true).ok());
  Pass(absl::Seconds(10), {server_});
  clock_.Advance(absl::Minutes(5));
  EXPECT_EQ(coordinator_->Heartbeat(server_)->state, v1::JOB_STATE_RUNNING);
  Pass(absl::Seconds(49), {server_});
  EXPECT_EQ(coordinator_->Heartbeat(server_)->state, v1::JOB_STATE_RUNNING);
  Pass(absl::Seconds(1), {server_});
  EXPECT_EQ(coordinator_->Heartbeat(server_)->state, v1::JOB_STATE_FAILED);
}

TEST_F(CoordinatorDiskTest, AMemberThatWaitsForAnAnswerIsNotSilent) {
  Gather(v1::Durability::WAL);
  files_.Block();
  ASSERT_TRUE(coordinator_->Leave(worker1_, "its device failed", true).ok());
  const absl::StatusOr<Coordinator::HeartbeatReply> reply = coordinator_->Heartbeat(server_);
  ASSERT_TRUE(reply.ok()) << reply.status();
  absl::Notification answered;
  coordinator_->AwaitSaved(server_, reply->change, [&](const absl::Status&) { answered.Notify(); });
  Pass(absl::Seconds(10), {worker0_});
  EXPECT_EQ(coordinator_->progress().servers_lost(), 0);
  files_.Release();
  answered.WaitForNotification();
  Pass(absl::Milliseconds(2500), {worker0_});
  EXPECT_EQ(coordinator_->progress().servers_lost(), 0) << "its next heartbeat may be on its way";
  Pass(absl::Milliseconds(500), {worker0_});
  EXPECT_EQ(coordinator_->progress().servers_lost(), 1);
  coordinator_.reset();
}

// Under WAL a machine crash may lose a second of leases and progress.
TEST_F(CoordinatorDiskTest, AMachineThatDiesForgetsNoIncarnationThatItGaveOut) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    LossyFileSystem files;
    const std::string folder = absl::StrCat(testing::TempDir(), "/lossy-", seed);
    std::filesystem::remove_all(folder);
    std::unique_ptr<CoordinatorStore> store = *CoordinatorStore::Open(&files, folder, &clock_);
    Newcomer worker = WorkerOf(0, Job(v1::Durability::WAL), 20, "first");
    {
      Coordinator coordinator({.job = {.servers = 1, .workers = 1}, .journal = store.get()}, &clock_);
      ASSERT_TRUE(coordinator.Join(ServerAt(0)).ok());
      const Membership::Id first = *coordinator.Join(worker);
      ASSERT_TRUE(coordinator.Leave(first, "killed by signal 9", true).ok());
      worker.description = "second";
      ASSERT_EQ(coordinator.Join(worker)->incarnation, 2u);
    }
    store.reset();
    ASSERT_TRUE(files.LoseUnsynced(seed).ok());
    store = *CoordinatorStore::Open(&files, folder, &clock_);
    internal::v1::CoordinatorState state;
    ASSERT_TRUE(state.ParseFromString(store->recovered()));
    Coordinator coordinator({.job = {.servers = 1, .workers = 1}, .journal = store.get()}, &clock_);
    ASSERT_TRUE(coordinator.Restore(state).ok());
    worker.description = "second";
    const absl::StatusOr<Membership::Id> again = coordinator.Join(worker);
    ASSERT_TRUE(again.ok()) << "seed " << seed << ": " << again.status();
    EXPECT_EQ(again->incarnation, 3u) << "seed " << seed;
  }
}

}  // namespace
}  // namespace ballast

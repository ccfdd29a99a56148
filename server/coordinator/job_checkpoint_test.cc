// SPDX-License-Identifier: Apache-2.0
// The checkpoints of a JobControl with one server, one of them every minute.
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/tensors/tensor_spec_fixture.h"
#include "gmock/gmock.h"
#include "server/coordinator/testing/job_fixture.h"

namespace ballast {
namespace {

using internal::v1::CheckpointManifest;
using ::testing::HasSubstr;

class JobCheckpointTest : public JobControlTest {
 protected:
  static v1::Job LongJob() {
    v1::Job job = SyncJob(v1::Durability::CHECKPOINT);
    job.mutable_training()->set_epochs(100);
    return job;
  }
  static JobOptions Options(std::optional<CheckpointManifest> resume = std::nullopt) {
    return {.servers = 1, .workers = 2, .first_checkpoint = 1, .resume = std::move(resume)};
  }

  void Start(std::optional<CheckpointManifest> resume = std::nullopt, bool declare = true) {
    control_.emplace(Options(std::move(resume)), now_);
    server_ = *JoinServer(0);
    for (Membership::Id* worker : {&worker0_, &worker1_}) {
      const std::string process = absl::StrCat("process ", worker == &worker0_);
      *worker = *control_->Join(WorkerOf(std::nullopt, LongJob(), 20, process), now_);
      if (declare && worker == &worker0_) {
        EXPECT_EQ(Acquire(worker0_), 0) << "worker 1 is missing";
      }
    }
    // The interval to the first checkpoint starts here.
    EXPECT_TRUE(Beat(server_).ok());
  }
  void PassAMinute() { Silence({worker0_, worker1_, server_}, absl::Minutes(1)); }
  v1::SaveCheckpointResponse Save(uint64_t id = 0, bool unless_outlived = false) {
    v1::SaveCheckpointRequest request;
    request.set_id(id);
    request.set_stop(true);
    request.set_unless_outlived(unless_outlived);
    return control_->SaveCheckpoint(request, now_);
  }
  // The server has written its part of that checkpoint; returns what follows.
  JobControl::Actions Write(uint64_t id = 1) {
    control_->TakeActions();
    v1::CheckpointPart part;
    part.set_id(id);
    part.set_stage(v1::CheckpointPart::STAGE_WRITTEN);
    part.set_bytes(7);
    EXPECT_TRUE(Beat(server_, part).ok());
    return control_->TakeActions();
  }
};

TEST_F(JobCheckpointTest, TakesNoneBeforeAWorkerHasDeclaredTheModel) {
  CheckpointManifest last;
  last.set_id(8);
  *last.mutable_job() = LongJob();
  last.set_train_examples(20);
  last.mutable_leases()->mutable_next()->set_epoch(100);
  for (int rank = 0; rank < 2; ++rank) last.mutable_leases()->add_by_rank()->set_epoch(100);
  Start(last, /*declare=*/false);
  EXPECT_EQ(Save().failure(), "no worker has declared the model yet");
  PassAMinute();
  EXPECT_EQ(Beat(server_)->capture_checkpoint_id, 0);
  EXPECT_EQ(Acquire(worker0_), 0) << "nothing is left to train";
  EXPECT_TRUE(Save().pending());
}

TEST_F(JobCheckpointTest, WaitsForDataThatIsHeldAndHandsOutNoMore) {
  Start();
  ASSERT_EQ(Acquire(worker0_), 1);
  ASSERT_EQ(Acquire(worker1_), 2);
  PassAMinute();
  EXPECT_TRUE(Beat(server_)->heartbeat_now);
  ASSERT_TRUE(Complete(worker0_, 1, 5, 6).ok());
  EXPECT_EQ(Acquire(worker0_), 0) << "all meet at the same place";
  EXPECT_EQ(Beat(server_)->capture_checkpoint_id, 0) << "worker 1 holds data";
  ASSERT_TRUE(Complete(worker1_, 2, 5, 6).ok());
  EXPECT_EQ(Beat(server_)->capture_checkpoint_id, 1);
  EXPECT_EQ(Acquire(worker0_), 0);
  EXPECT_FALSE(control_->TakeActions().commit.has_value());
  const JobControl::Actions actions = Write();
  EXPECT_GT(actions.publish, 0) << "worker 0's call checks again";
  EXPECT_EQ(Acquire(worker0_), 3) << "worker 0 continues";
  ASSERT_TRUE(actions.commit.has_value());
  EXPECT_EQ(actions.keep, 2);
  EXPECT_FALSE(control_->TakeActions().commit.has_value()) << "only once";

  Start(actions.commit);
  EXPECT_EQ(worker0_.incarnation, 2) << "above all incarnations of the first run";
  EXPECT_EQ(control_->workers().BeginningOf(worker1_).steps, 5);
  EXPECT_EQ(control_->workers().BeginningOf(worker1_).resumed_batches, 6);
  const auto grant = control_->workers().Acquire(worker0_, {}, now_);
  EXPECT_EQ((*grant)->lease->epoch, 1) << "the first epoch is done";
  EXPECT_EQ((*grant)->lease->id, 3) << "no id is given twice";
}

// Another version may have cut it otherwise.
TEST_F(JobCheckpointTest, AResumedJobIsCutAsItsCheckpointIs) {
  constexpr int64_t kElements = 1 << 20;
  CheckpointManifest last;
  last.set_id(8);
  *last.mutable_job() = LongJob();
  last.set_train_examples(20);
  last.mutable_leases()->mutable_next()->set_epoch(100);
  for (int rank = 0; rank < 2; ++rank) last.mutable_leases()->add_by_rank()->set_epoch(100);
  v1::ShardMap& map = *last.mutable_map();
  map.add_shards("then:1");
  v1::ShardMap::Tensor& tensor = *map.add_tensors();
  *tensor.mutable_spec() = SgdSpec(1, "w", kElements);
  for (const int half : {0, 1}) {
    v1::SliceRange& range = *tensor.add_slices()->mutable_range();
    range.set_index(half);
    range.set_offset(half * kElements / 2);
    range.set_elements(kElements / 2);
  }
  Start(last, /*declare=*/false);
  const auto slices = [&](absl::string_view job) {
    const absl::StatusOr<ShardMap> placed = control_->PlaceTensors(job, {SgdSpec(1, "w", kElements)}, {});
    EXPECT_TRUE(placed.ok()) << placed.status();
    return placed.ok() ? placed->Find(1)->slices.size() : 0;
  };
  EXPECT_EQ(slices(LongJob().name()), 2);
  Start(std::nullopt, /*declare=*/false);
  EXPECT_EQ(slices(LongJob().name()), 8);
}

// It may have been named before the coordinator was restarted.
TEST_F(JobCheckpointTest, AnIdThatWasNeverNamedBeginsANewCheckpoint) {
  Start();
  EXPECT_EQ(Save(18446744073709551615u).id(), 1);
  EXPECT_EQ(Save().id(), 1);
  EXPECT_EQ(Save(1).waiting_for(), "server 0");
  ASSERT_EQ(Beat(server_)->capture_checkpoint_id, 1);
}

// A restarted coordinator may be told to resume from the newest checkpoint.
TEST_F(JobCheckpointTest, ACheckpointOfTheJobItselfIsNotWhatItBeganFrom) {
  Start();
  PassAMinute();
  ASSERT_EQ(Beat(server_)->capture_checkpoint_id, 1);
  const std::optional<CheckpointManifest> first = Write().commit;
  ASSERT_TRUE(first.has_value());
  JobControl after(Options(first), now_);
  ASSERT_TRUE(after.Restore(control_->Export(now_), now_).ok());
  const absl::StatusOr<Membership::Id> returned = after.Join(WorkerOf(1, LongJob(), 20, "process 0"), now_);
  ASSERT_TRUE(returned.ok()) << returned.status();
  EXPECT_EQ(after.workers().BeginningOf(*returned).resumed_batches, std::nullopt);

  Start(first);
  JobControl restored(Options(first), now_);
  ASSERT_TRUE(restored.Restore(control_->Export(now_), now_).ok());
  EXPECT_EQ(restored.workers().BeginningOf(worker1_).resumed_batches, 0) << "it began from that checkpoint";
}

TEST_F(JobCheckpointTest, ProgressHasTheNewestCompleteCheckpoint) {
  Start();
  EXPECT_EQ(control_->checkpoint_interval(), absl::Minutes(1));
  PassAMinute();
  ASSERT_TRUE(Beat(server_).ok());
  ASSERT_EQ(Beat(server_)->capture_checkpoint_id, 1);
  v1::CheckpointPart captured;
  captured.set_id(1);
  captured.set_stage(v1::CheckpointPart::STAGE_CAPTURED);
  now_ += absl::Milliseconds(250);
  ASSERT_TRUE(Beat(server_, captured).ok());
  now_ += absl::Seconds(2);
  ASSERT_TRUE(Write().commit.has_value());
  EXPECT_FALSE(Progress().has_last_checkpoint()) << "not committed yet";
  now_ += absl::Milliseconds(500);
  control_->OnCommit(1, absl::OkStatus(), now_);
  EXPECT_DOUBLE_EQ(Progress().last_checkpoint().unix_seconds(), absl::ToDoubleSeconds(now_ - absl::UnixEpoch()));
  EXPECT_DOUBLE_EQ(Progress().last_checkpoint().seconds(), 2.75);
  EXPECT_DOUBLE_EQ(Progress().last_checkpoint().stall_seconds(), 0.25);

  JobControl restored(Options(), now_);
  ASSERT_TRUE(restored.Restore(control_->Export(now_), now_).ok());
  const v1::JobProgress after = restored.Progress(now_);
  EXPECT_EQ(after.last_checkpoint().DebugString(), Progress().last_checkpoint().DebugString());
}

TEST_F(JobCheckpointTest, FailedCheckpointIsNotTheNewest) {
  Start();
  PassAMinute();
  ASSERT_TRUE(Beat(server_).ok());
  ASSERT_TRUE(Write().commit.has_value());
  control_->OnCommit(1, absl::ResourceExhaustedError("no space left"), now_);
  EXPECT_FALSE(Progress().has_last_checkpoint());
}

TEST_F(JobCheckpointTest, AFailureIsSaidAndTrainingGoesOn) {
  Start();
  PassAMinute();
  ASSERT_EQ(Beat(server_)->capture_checkpoint_id, 1);
  v1::CheckpointPart part;
  part.set_id(1);
  part.set_stage(v1::CheckpointPart::STAGE_FAILED);
  part.set_failure("no space left");
  ASSERT_TRUE(Beat(server_, part).ok());
  ASSERT_EQ(Progress().notices_size(), 1);
  EXPECT_EQ(Progress().notices(0), "checkpoint 1 was abandoned: server 0: no space left; the next one is due in 1m");
  EXPECT_EQ(Acquire(worker0_), 1);
  EXPECT_EQ(State(), v1::JOB_STATE_RUNNING);
}

TEST_F(JobCheckpointTest, AFailedCommitIsSaidAndTheNextCheckpointFollows) {
  Start();
  PassAMinute();
  ASSERT_EQ(Beat(server_)->capture_checkpoint_id, 1);
  ASSERT_TRUE(Write().commit.has_value());
  control_->OnCommit(1, absl::ResourceExhaustedError("no space left"), now_);
  EXPECT_EQ(control_->TakeActions().notices[0], "checkpoint 1 was abandoned: no space left; the next one is due in 1m");
  PassAMinute();
  EXPECT_EQ(Beat(server_)->capture_checkpoint_id, 2);
}

TEST_F(JobCheckpointTest, AnotherJobOrOtherDataIsRefused) {
  Start();
  PassAMinute();
  ASSERT_EQ(Beat(server_)->capture_checkpoint_id, 1);
  control_.emplace(Options(Write().commit), now_);
  EXPECT_EQ(JoinWorker(0, LongJob(), 21).status().message(),
            "cannot resume from checkpoint 1: it was trained on 20 examples, got 21");
  v1::Job other_job = LongJob();
  other_job.set_name("other");
  EXPECT_EQ(JoinWorker(0, other_job).status().message(),
            "cannot resume from checkpoint 1: it belongs to job \"job\", got job \"other\"");
  EXPECT_TRUE(JoinWorker(0, LongJob()).ok());
}

TEST_F(JobCheckpointTest, AJobThatIsAboutToStopTakesOneAndThenHandsOutNoData) {
  Start();
  ASSERT_EQ(Acquire(worker0_), 1);
  EXPECT_TRUE(Save().pending());
  ASSERT_TRUE(Beat(server_).ok());
  EXPECT_EQ(Save(1).waiting_for(), "worker 0 (epoch 1, examples 0 to 10)");
  ASSERT_EQ(Acquire(worker1_), 2) << "the other part of the round";
  ASSERT_TRUE(Complete(worker0_, 1, 5, 6).ok());
  ASSERT_TRUE(Complete(worker1_, 2, 5, 6).ok());
  EXPECT_EQ(Beat(server_)->capture_checkpoint_id, 1);
  ASSERT_TRUE(Write().commit.has_value());
  EXPECT_TRUE(Save(1).pending()) << "not committed yet";
  control_->OnCommit(1, absl::OkStatus(), now_);
  EXPECT_EQ(control_->TakeActions().notices[0], "checkpoint 1 saved at step 5, epoch 1");
  for (uint64_t id : {1, 0}) {
    EXPECT_EQ(Save(id).ShortDebugString(), "id: 1 step: 5 epoch: 1") << "the job has not changed since";
  }
  EXPECT_EQ(Acquire(worker0_), 0);
  Silence({worker0_, worker1_, server_}, absl::Seconds(59));
  EXPECT_EQ(Acquire(worker0_), 0);
  now_ += absl::Seconds(1);
  ASSERT_TRUE(Beat(worker0_).ok());
  EXPECT_EQ(Acquire(worker0_), 3) << "nobody has stopped it";
}

TEST_F(JobCheckpointTest, AFinishedJobTakesOneLastCheckpoint) {
  control_.emplace(Options(), now_);
  Gather(SyncJob(v1::Durability::WAL));
  ASSERT_EQ(Acquire(worker0_), 1);
  ASSERT_EQ(Acquire(worker1_), 2);
  ASSERT_TRUE(Complete(worker0_, 1, 5, 6).ok());
  ASSERT_TRUE(Complete(worker1_, 2, 5, 6).ok());
  ASSERT_EQ(State(), v1::JOB_STATE_FINISHED);
  for (const Membership::Id& worker : {worker0_, worker1_}) ASSERT_TRUE(Leave(worker, "").ok());
  EXPECT_TRUE(Save().pending());
  EXPECT_EQ(Beat(server_)->capture_checkpoint_id, 1);
  const std::optional<CheckpointManifest> last = Write().commit;
  ASSERT_TRUE(last.has_value());
  control_->OnCommit(1, absl::OkStatus(), now_);
  EXPECT_EQ(Save().ShortDebugString(), "id: 1 step: 5 epoch: 1");
  Silence({server_}, absl::Minutes(2));
  EXPECT_EQ(Beat(server_)->capture_checkpoint_id, 0) << "no other one";

  v1::Job longer = SyncJob(v1::Durability::WAL);
  longer.mutable_training()->set_epochs(2);
  control_.emplace(Options(last), now_);
  Gather(longer);
  const auto grant = control_->workers().Acquire(worker0_, {}, now_);
  EXPECT_EQ((*grant)->lease->epoch, 1) << "only the additional one";
}

TEST_F(JobCheckpointTest, TheReasonWhyThereIsNoneIsTold) {
  Start();
  EXPECT_TRUE(Save().pending());
  ASSERT_EQ(Beat(server_)->capture_checkpoint_id, 1);
  v1::CheckpointPart part;
  part.set_id(1);
  part.set_stage(v1::CheckpointPart::STAGE_FAILED);
  part.set_failure("no space left");
  ASSERT_TRUE(Beat(server_, part).ok());
  EXPECT_EQ(Save(1).failure(), "server 0: no space left");
  EXPECT_EQ(Progress().notices(0), "checkpoint 1 was abandoned: server 0: no space left");
  EXPECT_EQ(Acquire(worker0_), 1) << "the job goes on";
  for (const Membership::Id& worker : {worker0_, worker1_}) ASSERT_TRUE(Leave(worker, "killed", true).ok());
  EXPECT_EQ(Save().id(), 2);
  ASSERT_TRUE(Beat(server_).ok());
  EXPECT_EQ(Save(2).failure(), "no worker is left to finish the data that was begun");
}

// They know when they are between two steps.
TEST_F(JobCheckpointTest, ProgramsTakeOneOnRequestAndAtTheEnd) {
  v1::Job job;
  job.set_name("job");
  control_.emplace(Options(), now_);
  server_ = *JoinServer(0);
  ASSERT_TRUE(control_->PlaceTensors("job", {SgdSpec(1, "weights", 10)}).ok());
  EXPECT_EQ(Save(0, /*unless_outlived=*/true).failure(),
            "the job's programs may be amid a step; ballast checkpoint save takes one");
  EXPECT_EQ(Save().id(), 1) << "programs need not join";
  EXPECT_EQ(Beat(server_)->capture_checkpoint_id, 1);
  const JobControl::Actions actions = Write();
  ASSERT_TRUE(actions.commit.has_value());
  EXPECT_FALSE(actions.commit->has_leases());
  EXPECT_EQ(actions.commit->job().name(), "job");
  control_->OnCommit(1, absl::OkStatus(), now_);
  EXPECT_FALSE(Save(1).pending());
  for (Membership::Id* worker : {&worker0_, &worker1_}) {
    *worker = *control_->Join(WorkerOf(std::nullopt, job, 0, absl::StrCat("process ", worker == &worker0_)), now_);
  }
  PassAMinute();
  EXPECT_EQ(Beat(server_)->capture_checkpoint_id, 0) << "there is no interval";
  for (const Membership::Id& worker : {worker0_, worker1_}) ASSERT_TRUE(Leave(worker, "").ok());
  ASSERT_EQ(State(), v1::JOB_STATE_FINISHED);
  EXPECT_EQ(Beat(server_)->capture_checkpoint_id, 2) << "nobody pushes any more";
}

TEST_F(JobCheckpointTest, ProgramsAndLeasedDataDoNotContinueEachOther) {
  v1::Job programs = LongJob();
  programs.clear_training();
  CheckpointManifest last;
  last.set_id(8);
  *last.mutable_job() = LongJob();
  last.set_train_examples(20);
  last.mutable_leases();
  control_.emplace(Options(last), now_);
  server_ = *JoinServer(0);
  EXPECT_THAT(std::string(control_->Join(WorkerOf(0, programs, 0), now_).status().message()),
              HasSubstr("its job had a model and data, this one has not"));
  last.clear_leases();
  control_.emplace(Options(last), now_);
  server_ = *JoinServer(0);
  EXPECT_THAT(std::string(control_->Join(WorkerOf(0, LongJob(), 20), now_).status().message()),
              HasSubstr("its workers brought their own data, this job has a model and data"));
  EXPECT_TRUE(control_->Join(WorkerOf(0, programs, 0), now_).ok());
}

TEST_F(JobCheckpointTest, AJobThatTakesNoneSaysWhy) {
  const auto with = [this](const JobOptions& options, const v1::Job& job, uint64_t examples) {
    control_.emplace(options, now_);
    Gather(job, examples);
  };
  v1::Job named;
  named.set_name("job");
  const v1::Job wal = SyncJob(v1::Durability::WAL);
  const std::pair<std::function<void()>, const char*> cases[] = {
      {[&] { control_.emplace(Options(), now_); }, "the job has not begun"},
      {[&] { with(Options(), SyncJob(), 20); }, "the job has durability none"},
      {[&] { with({.servers = 1, .workers = 2}, wal, 20); }, "server 0 has no --checkpoint_dir"},
      {[&] { with(Options(), named, 0); }, "no program has placed a tensor or table yet"},
      {[&] {
         with(Options(), wal, 20);
         EXPECT_TRUE(Leave(worker0_, "NaN").ok());
       },
       "the job has failed: worker 0 failed: NaN"},
  };
  for (const auto& [begin, why] : cases) {
    begin();
    EXPECT_EQ(Save().failure(), why);
    EXPECT_EQ(Save().id(), 0) << why;
  }
  with(Options(), wal, 20);
  EXPECT_EQ(Save(0, /*unless_outlived=*/true).failure(), "the job outlives its servers");
}

}  // namespace
}  // namespace ballast

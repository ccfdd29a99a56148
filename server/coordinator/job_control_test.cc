// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator/job_control.h"

#include <functional>
#include <string>
#include <vector>

#include "google/protobuf/text_format.h"
#include "server/coordinator/testing/job_fixture.h"

namespace ballast {
namespace {

TEST_F(JobControlTest, EachEventLeadsToItsStateAndActions) {
  const auto nothing = [] {};
  const auto run = [this] { Gather(); };
  const auto run_with_wal = [this] { Gather(SyncJob(v1::Durability::WAL)); };
  const auto lease = [this] { EXPECT_EQ((Gather(), Acquire(worker0_)), 1); };
  const auto fail = [this] { return Leave(worker1_, "NaN").ok(); };
  const auto end = [this, fail] { EXPECT_TRUE((Gather(), fail())); };
  const auto beat = [this] { return Beat(server_).ok(); };
  const auto pass = [this] { return now_ += absl::Seconds(3), Beat(server_).ok(); };
  const auto place = [this] { return control_->PlaceTensors("job", {SgdSpec(1, "w", 4)}).ok(); };
  const std::string silent =
      " (worker process) sent no heartbeat for 3s; no worker is left, and the job fails unless one returns within 1m";
  const auto kGathering = v1::JOB_STATE_GATHERING, kRunning = v1::JOB_STATE_RUNNING, kFailed = v1::JOB_STATE_FAILED;
  const struct {
    std::string event;
    std::function<void()> before;
    // Returns whether the event was accepted or refused as it should be.
    std::function<bool()> happens;
    v1::JobState state;
    bool published;
    std::vector<std::string> notices;
  } cases[] = {
      {"a server joins", nothing, [this] { return JoinServer(0).ok(); }, kGathering, true, {}},
      {"one too many joins", run, [this] { return !JoinWorker(2).ok(); }, kRunning, false, {}},
      {"a heartbeat", run, beat, kRunning, false, {}},
      {"progress", run, [this] { return Report(worker0_, {}).ok(); }, kRunning, false, {}},
      {"a lease is done", lease, [this] { return Complete(worker0_, 1).ok(); }, kRunning, true, {}},
      {"a placement", run, place, kRunning, true, {}},
      {"a loss",
       run,
       [this] { return Leave(worker1_, "killed", true).ok(); },
       kRunning,
       true,
       {"worker 1 was lost: killed; the others continue"}},
      {"a failure", run, fail, kFailed, true, {"the job has failed: worker 1 failed: NaN"}},
      {"a server is lost",
       run_with_wal,
       [this] { return Leave(server_, "killed", true).ok(); },
       kRunning,
       true,
       {"server 0 was lost: killed; the others wait up to 1m for it to return"}},
      {"silence", run_with_wal, pass, kRunning, true, {"worker 0" + silent, "worker 1" + silent}},
      {"a heartbeat after the end", end, beat, kFailed, false, {}},
  };
  for (const auto& c : cases) {
    control_.emplace(JobOptions{.servers = 1, .workers = 2}, now_);
    c.before();
    control_->TakeActions();
    EXPECT_TRUE(c.happens()) << c.event;
    const JobControl::Actions actions = control_->TakeActions();
    EXPECT_EQ(State(), c.state) << c.event;
    EXPECT_EQ(actions.publish > 0, c.published) << c.event;
    EXPECT_EQ(actions.notices, c.notices) << c.event;
    EXPECT_FALSE(actions.commit.has_value()) << c.event;
    EXPECT_EQ(control_->TakeActions().publish, 0) << c.event;
  }
}

TEST_F(JobControlTest, DealsEachWorkerItsShareWhereAllKeepStepAndElseToWhoeverAsks) {
  v1::Job job = SyncJob();
  const auto examples_of_worker0 = [&] {
    control_.emplace(JobOptions{.servers = 1, .workers = 2}, now_);
    Gather(job, 1000);
    uint64_t examples = 0;
    std::vector<uint64_t> held;
    while (const auto grant = control_->workers().Acquire(worker0_, held, now_)) {
      held.push_back((*grant)->lease->id);
      examples += (*grant)->lease->end - (*grant)->lease->begin;
    }
    return examples;
  };
  EXPECT_EQ(examples_of_worker0(), 500);
  job.mutable_policy()->mutable_sync()->set_quorum(1);
  EXPECT_EQ(examples_of_worker0(), 500);
  job.mutable_policy()->mutable_local_sgd()->set_local_steps(4);
  EXPECT_EQ(examples_of_worker0(), 500);
  job.mutable_policy()->mutable_async();
  EXPECT_EQ(examples_of_worker0(), 1000);
  job.mutable_policy()->mutable_bounded()->set_steps_ahead(3);
  EXPECT_EQ(examples_of_worker0(), 1000);
}

TEST_F(JobControlTest, RefusesABatchBeyondAllLimits) {
  v1::Job job = SyncJob();
  job.mutable_training()->set_batch_size(4000000000);
  const absl::Status status = JoinWorker(0, job).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("batch size 4000000000"), std::string::npos) << status;
}

TEST_F(JobControlTest, AnswersALeaseAgainWhoseAnswerWasLost) {
  Gather();
  EXPECT_EQ(Acquire(worker0_), 1);
  EXPECT_EQ(Acquire(worker0_), 1);
}

TEST_F(JobControlTest, AWorkerReturnsUnderItsRankAndTakesPartAgain) {
  Gather();
  EXPECT_EQ(Acquire(worker0_), 1);
  EXPECT_EQ(Acquire(worker1_), 2);
  ASSERT_TRUE(Leave(worker1_, "the GPU fell off the bus", /*worker_local=*/true).ok());
  EXPECT_EQ(control_->Describe(now_).members(2).state(), "lost");
  EXPECT_EQ(Progress().notices(0), "worker 1 was lost: the GPU fell off the bus; the others continue");
  const auto returned = JoinWorker(1);
  ASSERT_TRUE(returned.ok()) << returned.status();
  EXPECT_EQ(returned->incarnation, 2);
  EXPECT_TRUE(Beat(server_)->absent.empty());
  EXPECT_EQ(Acquire(*returned), 3) << "its previous lease, under a new id";
  ASSERT_TRUE(Complete(worker0_, 1).ok());
  ASSERT_TRUE(Complete(*returned, 3).ok());
  EXPECT_EQ(Progress().state(), v1::JOB_STATE_FINISHED);
}

TEST_F(JobControlTest, FailsOnceNoWorkerHasReturnedInTime) {
  v1::Job job = SyncJob();
  job.mutable_durability()->set_return_seconds(20);
  Gather(job);
  Silence({server_}, absl::Seconds(4));
  EXPECT_EQ(Beat(server_)->state, v1::JOB_STATE_RUNNING);
  Silence({server_}, absl::Seconds(18));
  EXPECT_EQ(Beat(server_)->state, v1::JOB_STATE_RUNNING);
  Silence({server_}, absl::Seconds(3));
  const auto reply = Beat(server_);
  EXPECT_EQ(reply->state, v1::JOB_STATE_FAILED);
  EXPECT_EQ(reply->reason.find("no worker was left, and none returned within 20s"), 0) << reply->reason;
  EXPECT_EQ(JoinWorker(1, job).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(JobControlTest, AWorkerThatReturnsInTimeKeepsTheJobAlive) {
  Gather();
  Silence({server_}, absl::Seconds(50));
  const auto returned = JoinWorker(0);
  ASSERT_TRUE(returned.ok()) << returned.status();
  Silence({server_, *returned}, absl::Seconds(50));
  EXPECT_EQ(Beat(server_)->state, v1::JOB_STATE_RUNNING);
}

TEST_F(JobControlTest, ALostServerFailsAJobThatDoesNotOutliveItAndSaysWhatWould) {
  Gather();
  Silence({worker0_, worker1_}, absl::Seconds(3));
  EXPECT_EQ(Beat(worker0_)->reason,
            "server 0 (server process) sent no heartbeat for 3s, and its shard "
            "is lost: with durability wal, "
            "wal_sync or standby the job would have survived");
}

TEST_F(JobControlTest, WaitsForAServerThatTheJobOutlives) {
  Gather(SyncJob(v1::Durability::WAL));
  Silence({worker0_, worker1_}, absl::Seconds(59));
  EXPECT_EQ(Beat(worker0_)->state, v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Progress().servers_lost(), 1);
  const auto returned = control_->Join(ServerAt(0, "127.0.0.1:1", "another process"), now_);
  ASSERT_TRUE(returned.ok()) << returned.status();
  EXPECT_EQ(returned->incarnation, 2);
  Silence({worker0_, worker1_}, absl::Seconds(59));
  EXPECT_EQ(Beat(worker0_)->state, v1::JOB_STATE_RUNNING);
  Silence({worker0_, worker1_}, absl::Seconds(5));
  EXPECT_EQ(Beat(worker0_)->reason,
            "server 0 (another process) sent no heartbeat for 3s and did not "
            "return within 1m");
}

TEST_F(JobControlTest, ARestartedServerTakesItsOwnPlaceAtOnceButNobodyElses) {
  Gather();
  EXPECT_EQ(control_->Join(ServerAt(0, "127.0.0.1:2", "a stranger"), now_).status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(control_->Join(ServerAt(0, "127.0.0.1:1", "its successor"), now_)->incarnation, 2);
}

// Otherwise the weights could not be saved if worker 0 died at the last step.
TEST_F(JobControlTest, ALostWorkerMayReturnToAFinishedJob) {
  Gather();
  EXPECT_EQ(Acquire(worker0_), 1);
  EXPECT_EQ(Acquire(worker1_), 2);
  ASSERT_TRUE(Complete(worker0_, 1).ok());
  ASSERT_TRUE(Complete(worker1_, 2).ok());
  ASSERT_TRUE(Leave(worker1_, "").ok());
  Silence({server_}, absl::Seconds(3));
  EXPECT_EQ(JoinWorker(1).status().message(), "the job has ended (finished); restart the servers to train again");
  const auto returned = JoinWorker(0);
  ASSERT_TRUE(returned.ok()) << returned.status();
  EXPECT_TRUE((*control_->workers().Acquire(*returned, {}, now_))->finished);
}

// Otherwise a pod that was evicted, and replaced only after the others had finished the job, would fail it.
TEST_F(JobControlTest, AWorkerThatLeftEarlyMayReturnToAFinishedJob) {
  Gather();
  EXPECT_EQ(Acquire(worker0_), 1);
  ASSERT_TRUE(Leave(worker0_, "").ok());
  for (int lease = 0; lease < 2; ++lease) ASSERT_TRUE(Complete(worker1_, Acquire(worker1_)).ok());
  ASSERT_TRUE(Leave(worker1_, "").ok());
  EXPECT_EQ(JoinWorker(1).status().message(), "the job has ended (finished); restart the servers to train again");
  const auto returned = JoinWorker(0);
  ASSERT_TRUE(returned.ok()) << returned.status();
  EXPECT_TRUE((*control_->workers().Acquire(*returned, {}, now_))->finished);
  ASSERT_TRUE(Leave(*returned, "").ok());
  EXPECT_EQ(JoinWorker(0).status().message(), "the job has ended (finished); restart the servers to train again");
}

TEST_F(JobControlTest, FailureOfAWorkerIsTheJobs) {
  Gather();
  ASSERT_TRUE(Leave(worker1_, "loss is NaN at step 7").ok());
  EXPECT_EQ(Beat(worker0_)->reason, "worker 1 failed: loss is NaN at step 7");
}

TEST_F(JobControlTest, RefusesAnotherJobFile) {
  ASSERT_TRUE(JoinWorker(0).ok());
  v1::Job other = SyncJob();
  other.mutable_training()->set_batch_size(20);
  const absl::Status status = JoinWorker(1, other).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("training.batch_size: 10 -> 20"), std::string::npos) << status;
  EXPECT_EQ(JoinWorker(1, SyncJob(), 19).status().message(),
            "job \"job\": worker process has 19 training examples, want 20 as "
            "other workers have");
}

TEST_F(JobControlTest, PlacesTensorsOnceAllServersHaveJoined) {
  const v1::TensorSpec spec = SgdSpec(0, "w", 3);
  EXPECT_EQ(control_->PlaceTensors("job", {spec}).status().message(),
            "tensors cannot be placed yet: server 0 has not joined");
  ASSERT_TRUE(JoinServer(0).ok());
  const auto map = control_->PlaceTensors("job", {spec});
  ASSERT_TRUE(map.ok());
  EXPECT_EQ(map->shards()[0], "127.0.0.1:1");
  EXPECT_EQ(map->tensors().size(), 1);
}

TEST_F(JobControlTest, PlacesTablesBesideTensors) {
  ASSERT_TRUE(JoinServer(0).ok());
  const auto map = control_->PlaceTensors("job", {SgdSpec(0, "w", 3)}, {SgdTable(1, "ids", 16)});
  ASSERT_TRUE(map.ok()) << map.status();
  EXPECT_EQ(map->FindTable(1)->OwnerOf(4095), 0);
  EXPECT_EQ(control_->PlaceTensors("job", {}, {SgdTable(1, "ids", 8)}).status().message(),
            "table 1 \"ids\" was declared before as \"ids\" and differs: modified: dim: 16 -> 8");
}

TEST_F(JobControlTest, SumsUpProgressOverTheWorkers) {
  Gather();
  v1::WorkerProgress progress;
  progress.set_step(10);
  progress.mutable_work()->set_examples(300);
  progress.mutable_work()->set_loss_sum(350);
  progress.mutable_work()->set_seconds(1);
  ASSERT_TRUE(Report(worker1_, progress).ok());
  progress.mutable_work()->set_examples(100);
  progress.mutable_work()->set_loss_sum(50);
  now_ += absl::Seconds(1);
  const auto sum = Report(worker0_, progress);
  ASSERT_TRUE(sum.ok());
  EXPECT_EQ(sum->examples(), 400);
  EXPECT_DOUBLE_EQ(sum->train_loss(), 1.0);
  EXPECT_DOUBLE_EQ(sum->samples_per_second(), 400);
  EXPECT_EQ(Report(worker0_, progress)->examples(), 400) << "a retry counts once";
}

TEST_F(JobControlTest, RefusesFiguresThatNoWorkerCanHave) {
  Gather();
  const auto error = [&](const char* text, const char* evaluation = "") {
    v1::WorkerProgress progress;
    v1::Evaluation evaluated;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &progress)) << text;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(evaluation, &evaluated)) << evaluation;
    const absl::Status status = Report(worker1_, progress, *evaluation == 0 ? nullptr : &evaluated).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text << evaluation;
    return std::string(status.message());
  };
  EXPECT_EQ(error("work { examples: 18446744073709551615 }"),
            "report of worker 1: work.examples: got 1.84467e+19, want 0 to 2^48");
  EXPECT_EQ(error("work { loss_sum: nan }"), "report of worker 1: work.loss_sum: got nan, want a finite number");
  EXPECT_EQ(error("work { seconds: inf }"), "report of worker 1: work.seconds: got inf, want 0 to 2^48");
  EXPECT_EQ(error("work { wait_seconds: -1 }"), "report of worker 1: work.wait_seconds: got -1, want 0 to 2^48");
  EXPECT_EQ(error("epoch: 1 work { examples: 1 }"), "report of worker 1: epoch: got 1, want below 1");
  EXPECT_EQ(error("step: 18446744073709551615"),
            "report of worker 1: step: got 18446744073709551615, want at most 2^48");
  EXPECT_EQ(error("learning_rate: nan"), "report of worker 1: learning_rate: got nan, want a finite number");
  EXPECT_EQ(error("acknowledged_pushes: [1, 2]"),
            "report of worker 1: acknowledged_pushes: got 2, want at most 1, one for each server");
  EXPECT_EQ(error("", "epoch: 2"), "report of worker 1: evaluation.epoch: got 2, want at most 1");
  EXPECT_EQ(error("", "accuracy: -7"), "report of worker 1: evaluation.accuracy: got -7, want 0 to 1");
  EXPECT_EQ(error("", "auc: 1.5"), "report of worker 1: evaluation.auc: got 1.5, want 0 to 1");
  EXPECT_EQ(error("", "calibration: -1"), "report of worker 1: evaluation.calibration: got -1, want at least 0");
  EXPECT_EQ(error("", "bayes_auc: 2"), "report of worker 1: evaluation.bayes_auc: got 2, want 0 to 1");
  EXPECT_EQ(Progress().examples(), 0);
}

TEST_F(JobControlTest, ALeaseIsNotCompletedWithMoreStepsThanAWorkerCanMake) {
  Gather();
  ASSERT_EQ(Acquire(worker0_), 1);
  EXPECT_EQ(Complete(worker0_, 1, 18446744073709551615u, 1).message(),
            "lease 1 of worker 0: got 18446744073709551615 steps and 1 batches, want at most 2^48");
  EXPECT_TRUE(Complete(worker0_, 1, 1, 1).ok());
}

TEST_F(JobControlTest, WhatAMemberSaysOfItselfIsOneShortLine) {
  server_ = *JoinServer(0);
  worker0_ = *control_->Join(WorkerOf(0, SyncJob(), 20, "\x1b[2Jhost\nprocess 7"), now_);
  worker1_ = *JoinWorker(1);
  EXPECT_EQ(control_->Describe(now_).members(1).description(), "?[2Jhost process 7");
  EXPECT_EQ(control_->Join(WorkerOf(0, SyncJob(), 20, "\x1b[2Jhost\nprocess 7"), now_)->incarnation, 2)
      << "the same process";
  ASSERT_TRUE(Leave(worker1_, std::string(2047, 'x') + "\xc3\xa4" + std::string(3000000, 'x')).ok());
  EXPECT_EQ(control_->Describe(now_).members(2).reason(), std::string(2047, 'x') + " ... (truncated)");
}

TEST_F(JobControlTest, KeepsAnEvaluationByAWorkerThatHasMadeNoStep) {
  Gather();
  v1::Evaluation evaluation;
  evaluation.set_accuracy(0.75);
  evaluation.set_auc(0.625);
  evaluation.set_bayes_auc(0.8125);
  const auto progress = Report(worker0_, {}, &evaluation);
  ASSERT_TRUE(progress.ok());
  EXPECT_EQ(progress->last_evaluation().accuracy(), 0.75);
  EXPECT_EQ(progress->last_evaluation().auc(), 0.625);
  EXPECT_EQ(progress->last_evaluation().bayes_auc(), 0.8125);
}

TEST_F(JobControlTest, RefusesAStateOfAnotherSize) {
  internal::v1::CoordinatorState state;
  state.add_members()->mutable_member()->set_role(v1::ROLE_WORKER);
  state.mutable_members(0)->mutable_member()->set_rank(2);
  state.mutable_members(0)->mutable_member()->set_incarnation(1);
  EXPECT_EQ(control_->Restore(state, now_).message(), "saved member: got worker 2, incarnation 1, want a rank below 2");
}

// A job whose data is a stream that ends after 10 s without rows.
class StreamJobTest : public JobControlTest {
 protected:
  static v1::Job Job() {
    v1::Job job = SyncJob();
    job.mutable_policy()->mutable_async();
    job.mutable_training()->set_epochs(9);
    job.mutable_data()->mutable_stream()->set_idle_seconds(10);
    return job;
  }
  WorkerControl::Grant Ask(const Membership::Id& worker, const std::optional<StreamSpan>& found = std::nullopt) {
    const auto grant = control_->workers().Acquire(worker, {}, now_, 0, found);
    EXPECT_TRUE(grant.has_value() && grant->ok()) << "the response must not wait";
    return grant.has_value() && grant->ok() ? **grant : WorkerControl::Grant();
  }
};

TEST_F(StreamJobTest, TellsWhereToLookAndLeasesWhatIsFound) {
  Gather(Job(), 1000);
  const WorkerControl::Grant nothing = Ask(worker0_);
  EXPECT_EQ(nothing.stream_position, StreamPosition());
  EXPECT_EQ(nothing.max_stream_examples, 160);
  EXPECT_FALSE(nothing.finished);
  const StreamSpan rows{{"a", 0, 0}, 50, 5, 5};
  EXPECT_EQ(Ask(worker0_, rows).lease->span, rows);
  const WorkerControl::Grant late = Ask(worker1_, rows);
  EXPECT_EQ(late.lease, std::nullopt);
  EXPECT_EQ(late.stream_position, rows.end());
  EXPECT_EQ(Progress().stream_position().offset(), 50);
}

TEST_F(StreamJobTest, EndsWhenItHasHadNoRowsForAWhile) {
  Gather(Job(), 1000);
  const StreamSpan rows{{"a", 0, 0}, 50, 5, 5}, none{rows.end(), 0, 0, 0};
  const uint64_t lease = Ask(worker0_, rows).lease->id;
  EXPECT_FALSE(Ask(worker1_, none).finished);
  Silence({worker0_, worker1_, server_}, absl::Seconds(11));
  EXPECT_FALSE(Ask(worker1_, none).finished) << "worker 0 still trains rows";
  ASSERT_TRUE(Complete(worker0_, lease).ok());
  EXPECT_TRUE(Ask(worker1_, none).finished);
  Silence({server_}, absl::Seconds(1));
  EXPECT_EQ(State(), v1::JOB_STATE_FINISHED);
  EXPECT_EQ(Progress().notices(0), "the training ends: the stream had no new rows for 10 s");
}

TEST_F(StreamJobTest, RowsOrALookElsewhereDoNotCountAsIdle) {
  Gather(Job(), 1000);
  const StreamSpan rows{{"a", 0, 0}, 50, 5, 5}, none{rows.end(), 0, 0, 0}, elsewhere{{"a", 0, 0}, 0, 0, 0};
  ASSERT_TRUE(Complete(worker0_, Ask(worker0_, rows).lease->id).ok());
  EXPECT_FALSE(Ask(worker1_, elsewhere).finished);
  Silence({worker0_, worker1_, server_}, absl::Seconds(9));
  EXPECT_FALSE(Ask(worker1_, elsewhere).finished);
  Silence({worker0_, worker1_, server_}, absl::Seconds(9));
  EXPECT_FALSE(Ask(worker1_, none).finished) << "nobody has looked before";
  Silence({worker0_, worker1_, server_}, absl::Seconds(9));
  const uint64_t next = Ask(worker1_, StreamSpan{rows.end(), 60, 6, 1}).lease->id;
  ASSERT_TRUE(Complete(worker1_, next).ok());
  Silence({worker0_, worker1_, server_}, absl::Seconds(9));
  EXPECT_FALSE(Ask(worker1_, StreamSpan{{"a", 60, 6}, 0, 0, 0}).finished) << "the time begins again";
}

}  // namespace
}  // namespace ballast

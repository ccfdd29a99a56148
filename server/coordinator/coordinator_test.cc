// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator/coordinator.h"

#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"
#include "common/storage/checkpoint_folder.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

class CoordinatorTest : public testing::Test {
 protected:
  static v1::Job Job() {
    v1::Job job;
    job.set_name("job");
    job.mutable_training()->set_epochs(1);
    job.mutable_training()->set_batch_size(10);
    job.mutable_policy()->mutable_sync();
    return job;
  }

  absl::StatusOr<Membership::Id> JoinServer(uint32_t rank) {
    return coordinator_.Join({MemberRole::kServer, rank, "127.0.0.1:1", "server process", {}, 0});
  }
  absl::StatusOr<Membership::Id> JoinWorker(uint32_t rank, const v1::Job& job = Job(), uint64_t examples = 20) {
    return coordinator_.Join({MemberRole::kWorker, rank, "", "worker process", job, examples});
  }
  void Gather() {
    server_ = *JoinServer(0);
    worker0_ = *JoinWorker(0);
    worker1_ = *JoinWorker(1);
  }

  // Returns the id of the next lease.
  uint64_t Acquire(const Membership::Id& id) {
    uint64_t lease = 0;
    coordinator_.AcquireLease(id, {}, absl::Seconds(1), [&](auto grant) { lease = grant->lease->id; });
    return lease;
  }

  // Time passes, and these members send heartbeats.
  void Silence(const std::vector<Membership::Id>& heard, absl::Duration time) {
    for (; time > absl::ZeroDuration(); time -= absl::Seconds(1)) {
      clock_.Advance(absl::Seconds(1));
      for (const Membership::Id& id : heard) ASSERT_TRUE(coordinator_.Heartbeat(id).ok());
    }
  }

  ManualClock clock_;
  Coordinator coordinator_{{.servers = 1, .workers = 2}, &clock_};
  Membership::Id server_, worker0_, worker1_;
};

TEST_F(CoordinatorTest, RunsOnceAllHaveJoinedAndFinishesOnceAllLeasesAreDone) {
  server_ = *JoinServer(0);
  EXPECT_EQ(coordinator_.progress().reason(), "waiting for worker 0, worker 1 to join");
  worker0_ = *JoinWorker(0);
  worker1_ = *JoinWorker(1);
  EXPECT_EQ(coordinator_.progress().state(), v1::JOB_STATE_RUNNING);
  std::vector<DataLease> leases;
  for (const Membership::Id& id : {worker0_, worker1_}) {
    coordinator_.AcquireLease(id, {}, absl::Seconds(1), [&](auto grant) { leases.push_back(*grant->lease); });
  }
  ASSERT_EQ(leases.size(), 2);
  ASSERT_TRUE(coordinator_.CompleteLease(worker0_, leases[0].id).ok());
  bool finished = false;
  coordinator_.AcquireLease(worker0_, {}, absl::Seconds(1), [&](auto grant) { finished = grant->finished; });
  EXPECT_FALSE(finished);
  ASSERT_TRUE(coordinator_.CompleteLease(worker1_, leases[1].id).ok());
  EXPECT_TRUE(finished);
  EXPECT_EQ(coordinator_.Heartbeat(server_)->state, v1::JOB_STATE_FINISHED);
}

TEST_F(CoordinatorTest, LeaseWaitsUntilAllHaveJoined) {
  ASSERT_TRUE(JoinServer(0).ok());
  worker0_ = *JoinWorker(0);
  bool granted = false;
  coordinator_.AcquireLease(worker0_, {}, absl::Seconds(1), [&](auto grant) { granted = grant->lease.has_value(); });
  EXPECT_FALSE(granted);
  ASSERT_TRUE(JoinWorker(1).ok());
  EXPECT_TRUE(granted);
}

TEST_F(CoordinatorTest, DealsEachWorkerItsShareWhereAllKeepStepAndElseToWhoeverAsks) {
  v1::Job job = Job();
  const auto examples_of_worker0 = [&] {
    Coordinator coordinator({.servers = 1, .workers = 2}, &clock_);
    EXPECT_TRUE(coordinator.Join({MemberRole::kServer, 0, "127.0.0.1:1", "server process", {}, 0}).ok());
    const Membership::Id first = *coordinator.Join({MemberRole::kWorker, 0, "", "worker process", job, 1000});
    EXPECT_TRUE(coordinator.Join({MemberRole::kWorker, 1, "", "worker process", job, 1000}).ok());
    uint64_t examples = 0;
    std::vector<uint64_t> held;
    for (bool got = true; got;) {
      got = false;
      coordinator.AcquireLease(first, held, absl::Seconds(1), [&](auto grant) {
        if (!grant.ok() || !grant->lease.has_value()) return;
        got = true;
        held.push_back(grant->lease->id);
        examples += grant->lease->end - grant->lease->begin;
      });
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
  job.mutable_policy()->mutable_bounded()->set_staleness(3);
  EXPECT_EQ(examples_of_worker0(), 1000);
}

// A job whose workers bring their own model and data.
class OwnDataTest : public CoordinatorTest {
 protected:
  static v1::Job Named() {
    v1::Job job;
    job.set_name("job");
    return job;
  }
  void Gather() {
    server_ = *JoinServer(0);
    worker0_ = *JoinWorker(0, Named(), 0);
    worker1_ = *JoinWorker(1, Named(), 0);
  }
  v1::JobState state() const { return coordinator_.progress().state(); }
};

TEST_F(OwnDataTest, RunsWithANameAloneAndIsFinishedWhenAllWorkersHaveLeft) {
  Gather();
  EXPECT_EQ(state(), v1::JOB_STATE_RUNNING);
  v1::WorkerProgress progress;
  progress.set_step(7);
  ASSERT_TRUE(coordinator_.ReportProgress(worker0_, progress, nullptr).ok());
  EXPECT_EQ(coordinator_.progress().step(), 7);
  ASSERT_TRUE(coordinator_.Leave(worker1_, "").ok());
  EXPECT_EQ(state(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(coordinator_.progress().notices_size(), 0);
  // The job does not wait for a worker that has left.
  ASSERT_EQ(coordinator_.Heartbeat(server_)->absent.size(), 1);
  EXPECT_EQ(coordinator_.Heartbeat(server_)->absent[0].rank, 1);
  ASSERT_TRUE(coordinator_.Leave(worker0_, "").ok());
  EXPECT_EQ(state(), v1::JOB_STATE_FINISHED);
}

TEST_F(OwnDataTest, HasNoLeases) {
  Gather();
  absl::Status acquired;
  coordinator_.AcquireLease(worker0_, {}, absl::Seconds(1), [&](auto grant) { acquired = grant.status(); });
  EXPECT_EQ(acquired.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(acquired), v1::ERROR_REASON_NO_DATA);
  EXPECT_EQ(ReasonOf(coordinator_.CompleteLease(worker0_, 1)), v1::ERROR_REASON_NO_DATA);
}

TEST_F(OwnDataTest, GoesOnWithoutAWorkerThatIsLostUntilTheOthersHaveLeft) {
  Gather();
  Silence({server_, worker0_}, absl::Seconds(5));
  EXPECT_EQ(coordinator_.progress().workers_lost(), 1);
  ASSERT_EQ(coordinator_.Heartbeat(server_)->absent.size(), 1);
  ASSERT_TRUE(coordinator_.Leave(worker0_, "").ok());
  // It may return within the usual time.
  EXPECT_EQ(state(), v1::JOB_STATE_RUNNING);
  Silence({server_}, absl::Seconds(61));
  EXPECT_EQ(state(), v1::JOB_STATE_FINISHED);
}

TEST_F(OwnDataTest, ALostWorkerMayReturnAndGoOn) {
  Gather();
  Silence({server_, worker0_}, absl::Seconds(5));
  const absl::StatusOr<Membership::Id> again = JoinWorker(1, Named(), 0);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->incarnation, 2);
  EXPECT_EQ(coordinator_.Heartbeat(server_)->absent.size(), 0);
  ASSERT_TRUE(coordinator_.Leave(worker0_, "").ok());
  ASSERT_TRUE(coordinator_.Leave(*again, "").ok());
  EXPECT_EQ(state(), v1::JOB_STATE_FINISHED);
}

TEST_F(OwnDataTest, FailsWhenAWorkerDoesOrNobodyIsLeft) {
  Gather();
  ASSERT_TRUE(coordinator_.Leave(worker0_, "the loss is NaN").ok());
  EXPECT_EQ(state(), v1::JOB_STATE_FAILED);
  Coordinator deserted({.servers = 1, .workers = 1}, &clock_);
  const Membership::Id server = *deserted.Join({MemberRole::kServer, 0, "127.0.0.1:1", "server process", {}, 0});
  ASSERT_TRUE(deserted.Join({MemberRole::kWorker, 0, "", "worker process", Named(), 0}).ok());
  for (int i = 0; i < 70; ++i) {
    clock_.Advance(absl::Seconds(1));
    ASSERT_TRUE(deserted.Heartbeat(server).ok());
  }
  EXPECT_EQ(deserted.progress().state(), v1::JOB_STATE_FAILED);
}

TEST_F(OwnDataTest, ItsStateOutlivesTheCoordinator) {
  Gather();
  Coordinator other({.servers = 1, .workers = 2}, &clock_);
  ASSERT_TRUE(other.Restore(coordinator_.Export()).ok());
  EXPECT_EQ(other.progress().state(), v1::JOB_STATE_RUNNING);
  ASSERT_TRUE(other.Leave(worker0_, "").ok());
  ASSERT_TRUE(other.Leave(worker1_, "").ok());
  EXPECT_EQ(other.progress().state(), v1::JOB_STATE_FINISHED);
}

TEST_F(OwnDataTest, AJobWithAModelOrDataStillWantsItsTerms) {
  v1::Job with_model = Named(), with_data = Named();
  with_model.mutable_model();
  with_data.mutable_data();
  for (const v1::Job& job : {with_model, with_data}) {
    EXPECT_EQ(JoinWorker(0, job, 0).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(JoinWorker(0, job, 20).status().code(), absl::StatusCode::kInvalidArgument) << "batch size and epochs";
  }
  EXPECT_EQ(JoinWorker(0, Named(), 20).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(JoinWorker(0, v1::Job(), 0).status().code(), absl::StatusCode::kInvalidArgument) << "name";
  // Either all workers of a job bring their own data or none does.
  ASSERT_TRUE(JoinWorker(0, Named(), 0).ok());
  EXPECT_EQ(JoinWorker(1).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(OwnDataTest, TakesNoCheckpoints) {
  v1::Job job = Named();
  job.mutable_durability()->set_mode(v1::Durability::CHECKPOINT);
  const absl::Status status = JoinWorker(0, job, 0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(status), v1::ERROR_REASON_INVALID_REQUEST);
}

TEST_F(CoordinatorTest, RefusesABatchBeyondAllLimits) {
  v1::Job job = Job();
  job.mutable_training()->set_batch_size(4000000000);
  const absl::Status status = JoinWorker(0, job).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("batch size 4000000000"), std::string::npos) << status;
}

TEST_F(CoordinatorTest, AnswersALeaseAgainWhoseAnswerWasLost) {
  Gather();
  std::vector<uint64_t> ids;
  for (int i = 0; i < 2; ++i) {
    coordinator_.AcquireLease(worker0_, {}, absl::Seconds(1), [&](auto grant) { ids.push_back(grant->lease->id); });
  }
  EXPECT_EQ(ids, (std::vector<uint64_t>{1, 1}));
}

TEST_F(CoordinatorTest, TheOthersGoOnWithoutASilentWorkerAndTakeItsData) {
  Gather();
  EXPECT_EQ(Acquire(worker1_), 1);
  EXPECT_EQ(Acquire(worker0_), 2);
  std::optional<DataLease> taken_over;
  coordinator_.AcquireLease(worker0_, {2}, absl::Hours(1), [&](auto grant) { taken_over = grant->lease; });
  Silence({server_, worker0_}, absl::Seconds(3));
  const auto reply = coordinator_.Heartbeat(server_);
  ASSERT_TRUE(reply.ok()) << reply.status();
  EXPECT_EQ(reply->state, v1::JOB_STATE_RUNNING);
  ASSERT_EQ(reply->absent.size(), 1) << "so that no server waits for it";
  EXPECT_EQ(reply->absent[0].rank, 1);
  EXPECT_EQ(reply->absent[0].incarnation, 1);
  ASSERT_TRUE(taken_over.has_value()) << "a waiting call gets the lost worker's lease";
  EXPECT_EQ(taken_over->begin, 10);
  EXPECT_EQ(taken_over->end, 20);
  EXPECT_EQ(coordinator_.progress().examples_repeated(), 10);
  EXPECT_EQ(coordinator_.progress().workers_lost(), 1);
  EXPECT_EQ(coordinator_.progress().notices(0),
            "worker 1 (worker process) sent no heartbeat for 3s; the others continue");
  EXPECT_EQ(coordinator_.Describe().members(2).state(), "lost");
  EXPECT_EQ(coordinator_.Describe().members(2).reason(), "sent no heartbeat for 3s");
  EXPECT_EQ(coordinator_.Heartbeat(worker1_).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(CoordinatorTest, AWorkerReturnsUnderItsRankAndTakesPartAgain) {
  Gather();
  EXPECT_EQ(Acquire(worker0_), 1);
  EXPECT_EQ(Acquire(worker1_), 2);
  ASSERT_TRUE(coordinator_.Leave(worker1_, "the GPU fell off the bus", /*worker_local=*/true).ok());
  EXPECT_EQ(coordinator_.Describe().members(2).state(), "lost");
  EXPECT_EQ(coordinator_.progress().notices(0), "worker 1 was lost: the GPU fell off the bus; the others continue");
  const auto returned = JoinWorker(1);
  ASSERT_TRUE(returned.ok()) << returned.status();
  EXPECT_EQ(returned->incarnation, 2);
  EXPECT_TRUE(coordinator_.Heartbeat(server_)->absent.empty());
  EXPECT_EQ(Acquire(*returned), 3) << "its previous lease, under a new id";
  ASSERT_TRUE(coordinator_.CompleteLease(worker0_, 1).ok());
  ASSERT_TRUE(coordinator_.CompleteLease(*returned, 3).ok());
  EXPECT_EQ(coordinator_.progress().state(), v1::JOB_STATE_FINISHED);
}

TEST_F(CoordinatorTest, FailsOnceNoWorkerHasReturnedInTime) {
  v1::Job job = Job();
  job.mutable_durability()->set_return_seconds(20);
  server_ = *JoinServer(0);
  worker0_ = *JoinWorker(0, job);
  worker1_ = *JoinWorker(1, job);
  Silence({server_}, absl::Seconds(4));
  EXPECT_EQ(coordinator_.Heartbeat(server_)->state, v1::JOB_STATE_RUNNING);
  Silence({server_}, absl::Seconds(18));
  EXPECT_EQ(coordinator_.Heartbeat(server_)->state, v1::JOB_STATE_RUNNING);
  Silence({server_}, absl::Seconds(3));
  const auto reply = coordinator_.Heartbeat(server_);
  EXPECT_EQ(reply->state, v1::JOB_STATE_FAILED);
  EXPECT_EQ(reply->reason.find("no worker was left, and none returned within 20s"), 0) << reply->reason;
  EXPECT_EQ(JoinWorker(1, job).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(CoordinatorTest, AWorkerThatReturnsInTimeKeepsTheJobAlive) {
  Gather();
  Silence({server_}, absl::Seconds(50));
  const auto returned = JoinWorker(0);
  ASSERT_TRUE(returned.ok()) << returned.status();
  Silence({server_, *returned}, absl::Seconds(50));
  EXPECT_EQ(coordinator_.Heartbeat(server_)->state, v1::JOB_STATE_RUNNING);
}

TEST_F(CoordinatorTest, ALostServerFailsAJobThatDoesNotOutliveItAndSaysWhatWould) {
  Gather();
  Silence({worker0_, worker1_}, absl::Seconds(3));
  EXPECT_EQ(coordinator_.Heartbeat(worker0_)->reason,
            "server 0 (server process) sent no heartbeat for 3s, and its shard is lost: with durability wal, "
            "wal_sync or standby the job would have survived");
}

TEST_F(CoordinatorTest, WaitsForAServerThatTheJobOutlives) {
  v1::Job job = Job();
  job.mutable_durability()->set_mode(v1::Durability::WAL);
  server_ = *JoinServer(0);
  worker0_ = *JoinWorker(0, job);
  worker1_ = *JoinWorker(1, job);
  Silence({worker0_, worker1_}, absl::Seconds(59));
  EXPECT_EQ(coordinator_.Heartbeat(worker0_)->state, v1::JOB_STATE_RUNNING);
  EXPECT_EQ(coordinator_.progress().servers_lost(), 1);
  const auto returned = coordinator_.Join({MemberRole::kServer, 0, "127.0.0.1:1", "another process", {}, 0});
  ASSERT_TRUE(returned.ok()) << returned.status();
  EXPECT_EQ(returned->incarnation, 2);
  Silence({worker0_, worker1_}, absl::Seconds(59));
  EXPECT_EQ(coordinator_.Heartbeat(worker0_)->state, v1::JOB_STATE_RUNNING);
  Silence({worker0_, worker1_}, absl::Seconds(5));
  EXPECT_EQ(coordinator_.Heartbeat(worker0_)->reason,
            "server 0 (another process) sent no heartbeat for 3s and did not return within 1m");
}

TEST_F(CoordinatorTest, ARestartedServerTakesItsOwnPlaceAtOnceButNobodyElses) {
  Gather();
  EXPECT_EQ(coordinator_.Join({MemberRole::kServer, 0, "127.0.0.1:2", "a stranger", {}, 0}).status().code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(coordinator_.Join({MemberRole::kServer, 0, "127.0.0.1:1", "its successor", {}, 0})->incarnation, 2);
}

// Otherwise the weights could not be saved if worker 0 died at the last step.
TEST_F(CoordinatorTest, ALostWorkerMayReturnToAFinishedJob) {
  Gather();
  EXPECT_EQ(Acquire(worker0_), 1);
  EXPECT_EQ(Acquire(worker1_), 2);
  ASSERT_TRUE(coordinator_.CompleteLease(worker0_, 1).ok());
  ASSERT_TRUE(coordinator_.CompleteLease(worker1_, 2).ok());
  ASSERT_TRUE(coordinator_.Leave(worker1_, "").ok());
  Silence({server_}, absl::Seconds(3));
  EXPECT_EQ(JoinWorker(1).status().message(), "the job has ended (finished); restart the servers to train again");
  const auto returned = JoinWorker(0);
  ASSERT_TRUE(returned.ok()) << returned.status();
  bool finished = false;
  coordinator_.AcquireLease(*returned, {}, absl::Seconds(1), [&](auto grant) { finished = grant->finished; });
  EXPECT_TRUE(finished);
}

// Keeps each state; fails when the test asks for it.
class MemoryJournal : public CoordinatorJournal {
 public:
  absl::Status Save(absl::string_view state, bool) override {
    if (full) return absl::ResourceExhaustedError("the disk is full");
    ++saves;
    saved = std::string(state);
    return absl::OkStatus();
  }
  void Settle() override {}
  bool full = false;
  int saves = 0;
  std::string saved;
};

class SavedCoordinatorTest : public CoordinatorTest {
 protected:
  SavedCoordinatorTest() { job_.mutable_durability()->set_mode(v1::Durability::WAL); }

  Coordinator::Options Options() { return {.servers = 1, .workers = 2, .journal = &journal_}; }

  // Server 0 dies and is started again.
  void Restart() {
    internal::v1::CoordinatorState state;
    ASSERT_TRUE(state.ParseFromString(journal_.saved));
    restarted_ = std::make_unique<Coordinator>(Options(), &clock_);
    ASSERT_TRUE(restarted_->Restore(state).ok());
  }

  v1::Job job_ = Job();
  MemoryJournal journal_;
  Coordinator first_{Options(), &clock_};
  std::unique_ptr<Coordinator> restarted_;
};

TEST_F(SavedCoordinatorTest, AfterARestartOfServer0MembersAndLeasesGoOn) {
  server_ = *first_.Join({MemberRole::kServer, 0, "127.0.0.1:1", "server process", {}, 0});
  worker0_ = *first_.Join({MemberRole::kWorker, 0, "", "first", job_, 20});
  worker1_ = *first_.Join({MemberRole::kWorker, 1, "", "second", job_, 20});
  v1::TensorSpec spec;
  spec.set_name("w");
  spec.add_shape(3);
  spec.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
  ASSERT_TRUE(first_.PlaceTensors("job", {spec}).ok());
  uint64_t held = 0;
  first_.AcquireLease(worker0_, {}, absl::Seconds(1), [&](auto grant) { held = grant->lease->id; });
  v1::WorkerProgress progress;
  progress.set_step(1);
  progress.set_examples(10);
  ASSERT_TRUE(first_.ReportProgress(worker0_, progress, nullptr).ok());
  Restart();
  EXPECT_TRUE(restarted_->Heartbeat(worker0_).ok());
  EXPECT_TRUE(restarted_->Heartbeat(worker1_).ok());
  EXPECT_EQ(restarted_->shard_map().tensors().size(), 1);
  EXPECT_EQ(restarted_->ReportProgress(worker0_, progress, nullptr)->examples(), 10) << "a retry still counts once";
  DataLease other;
  restarted_->AcquireLease(worker1_, {}, absl::Seconds(1), [&](auto grant) { other = *grant->lease; });
  EXPECT_NE(other.id, held) << "a lease is not granted again while its holder lives";
  EXPECT_EQ(other.begin, 10);
  EXPECT_TRUE(restarted_->CompleteLease(worker0_, held).ok());
  EXPECT_TRUE(restarted_->CompleteLease(worker1_, other.id).ok());
  EXPECT_EQ(restarted_->progress().state(), v1::JOB_STATE_FINISHED);
  EXPECT_EQ(restarted_->Join({MemberRole::kServer, 0, "127.0.0.1:1", "its successor", {}, 0})->incarnation, 2);
}

TEST_F(SavedCoordinatorTest, AfterARestartWhoDoesNotReturnIsGivenUpInItsTime) {
  server_ = *first_.Join({MemberRole::kServer, 0, "127.0.0.1:1", "server process", {}, 0});
  worker0_ = *first_.Join({MemberRole::kWorker, 0, "", "first", job_, 20});
  worker1_ = *first_.Join({MemberRole::kWorker, 1, "", "second", job_, 20});
  clock_.Advance(absl::Minutes(10));
  Restart();
  EXPECT_EQ(restarted_->Join({MemberRole::kServer, 0, "127.0.0.1:1", "its successor", {}, 0})->incarnation, 2);
  EXPECT_TRUE(restarted_->Heartbeat(worker0_)->absent.empty());
  clock_.Advance(absl::Seconds(2));
  EXPECT_TRUE(restarted_->Heartbeat(worker0_).ok());
  clock_.Advance(absl::Seconds(1));
  ASSERT_EQ(restarted_->Heartbeat(worker0_)->absent.size(), 1);
}

TEST_F(SavedCoordinatorTest, NothingIsAnsweredThatCouldNotBeSaved) {
  server_ = *first_.Join({MemberRole::kServer, 0, "127.0.0.1:1", "server process", {}, 0});
  worker0_ = *first_.Join({MemberRole::kWorker, 0, "", "first", job_, 20});
  journal_.full = true;
  EXPECT_TRUE(first_.Join({MemberRole::kWorker, 1, "", "second", job_, 20}).ok());
  absl::Status refused;
  first_.AwaitSaved([&](const absl::Status& saved) { refused = saved; });
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  const auto reply = first_.Heartbeat(server_);
  ASSERT_TRUE(reply.ok());
  first_.AwaitSaved(reply->change, [&](const absl::Status& saved) { refused = saved; });
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << "the response would say that the job runs";
  refused = absl::OkStatus();
  first_.AcquireLease(worker0_, {}, absl::Seconds(1), [&](auto grant) { refused = grant.status(); });
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  journal_.full = false;
  uint64_t id = 0;
  first_.AcquireLease(worker0_, {}, absl::Seconds(1), [&](auto grant) { id = grant->lease->id; });
  EXPECT_EQ(id, 1) << "the same lease again";
}

TEST_F(SavedCoordinatorTest, AJobThatOutlivesNothingIsNotSaved) {
  ASSERT_TRUE(first_.Join({MemberRole::kWorker, 0, "", "first", Job(), 20}).ok());
  EXPECT_EQ(journal_.saves, 0);
}

TEST_F(SavedCoordinatorTest, RefusesAStateOfAnotherSize) {
  internal::v1::CoordinatorState state;
  state.add_members()->mutable_member()->set_role(v1::ROLE_WORKER);
  state.mutable_members(0)->mutable_member()->set_rank(2);
  state.mutable_members(0)->mutable_member()->set_incarnation(1);
  EXPECT_EQ(first_.Restore(state).message(), "saved member: got worker 2, incarnation 1, want a rank below 2");
}

TEST_F(CoordinatorTest, FailureOfAWorkerIsTheJobs) {
  Gather();
  ASSERT_TRUE(coordinator_.Leave(worker1_, "loss is NaN at step 7").ok());
  EXPECT_EQ(coordinator_.Heartbeat(worker0_)->reason, "worker 1 failed: loss is NaN at step 7");
}

TEST_F(CoordinatorTest, RefusesAnotherJobFile) {
  ASSERT_TRUE(JoinWorker(0).ok());
  v1::Job other = Job();
  other.mutable_training()->set_batch_size(20);
  const absl::Status status = JoinWorker(1, other).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("training.batch_size: 10 -> 20"), std::string::npos) << status;
  EXPECT_EQ(JoinWorker(1, Job(), 19).status().message(),
            "job \"job\": worker process has 19 training examples, want 20 as other workers have");
}

TEST_F(CoordinatorTest, PlacesTensorsOnceAllServersHaveJoined) {
  v1::TensorSpec spec;
  spec.set_name("w");
  spec.add_shape(3);
  spec.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
  EXPECT_EQ(coordinator_.PlaceTensors("job", {spec}).status().message(),
            "tensors cannot be placed yet: server 0 has not joined");
  ASSERT_TRUE(JoinServer(0).ok());
  const auto map = coordinator_.PlaceTensors("job", {spec});
  ASSERT_TRUE(map.ok());
  EXPECT_EQ(map->shards()[0], "127.0.0.1:1");
  EXPECT_EQ(map->tensors().size(), 1);
}

TEST_F(CoordinatorTest, SumsUpProgressOverTheWorkers) {
  Gather();
  v1::WorkerProgress progress;
  progress.set_step(10);
  progress.set_examples(100);
  progress.set_loss_sum(50);
  progress.set_seconds(1);
  ASSERT_TRUE(coordinator_.ReportProgress(worker0_, progress, nullptr).ok());
  progress.set_examples(300);
  progress.set_loss_sum(350);
  const auto sum = coordinator_.ReportProgress(worker1_, progress, nullptr);
  ASSERT_TRUE(sum.ok());
  EXPECT_EQ(sum->examples(), 400);
  EXPECT_DOUBLE_EQ(sum->train_loss(), 1.0);
  EXPECT_DOUBLE_EQ(sum->samples_per_second(), 400);
  EXPECT_EQ(coordinator_.ReportProgress(worker1_, progress, nullptr)->examples(), 400) << "a retry counts once";
}

TEST_F(CoordinatorTest, KeepsAnEvaluationByAWorkerThatHasMadeNoStep) {
  Gather();
  v1::Evaluation evaluation;
  evaluation.set_accuracy(0.75);
  const auto progress = coordinator_.ReportProgress(worker0_, {}, &evaluation);
  ASSERT_TRUE(progress.ok());
  EXPECT_EQ(progress->last_evaluation().accuracy(), 0.75);
}

TEST_F(CoordinatorTest, LeaseWaitEndsSayingWhomItWaitedFor) {
  Gather();
  coordinator_.AcquireLease(worker0_, {}, absl::Seconds(1), [](auto grant) { ASSERT_EQ(grant->lease->id, 1); });
  std::promise<std::string> waiting_for;
  coordinator_.AcquireLease(worker0_, {1}, absl::ZeroDuration(),
                            [&](auto grant) { waiting_for.set_value(grant->waiting_for); });
  std::future<std::string> ended = waiting_for.get_future();
  ASSERT_EQ(ended.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  EXPECT_EQ(ended.get(), "worker 0 (epoch 1, examples 0 to 10)");
}

TEST_F(CoordinatorTest, LaterCallOfAWorkerWaitsInPlaceOfTheOneBefore) {
  Gather();
  ASSERT_EQ(Acquire(worker0_), 1);
  absl::Status first, second;
  coordinator_.AcquireLease(worker0_, {1}, absl::Hours(1), [&](auto grant) { first = grant.status(); });
  const WaitList::Ticket ticket =
      coordinator_.AcquireLease(worker0_, {1}, absl::Hours(1), [&](auto grant) { second = grant.status(); });
  EXPECT_EQ(first, absl::CancelledError("replaced by a later call of worker 0"));
  EXPECT_EQ(coordinator_.waiting(), 1);
  coordinator_.CancelWait(ticket);
  EXPECT_TRUE(absl::IsCancelled(second)) << second;
  EXPECT_EQ(coordinator_.waiting(), 0);
}

TEST_F(CoordinatorTest, WorkerThatWaitsForALeaseIsLostAllTheSameWhenItIsSilent) {
  Gather();
  ASSERT_EQ(Acquire(worker0_), 1);
  ASSERT_EQ(Acquire(worker1_), 2);
  absl::Status ended;
  coordinator_.AcquireLease(worker1_, {2}, absl::Hours(1), [&](auto grant) { ended = grant.status(); });
  Silence({server_, worker0_}, absl::Seconds(2));
  // All waiting calls check again.
  ASSERT_TRUE(coordinator_.CompleteLease(worker0_, 1).ok());
  Silence({server_, worker0_}, absl::Seconds(2));
  EXPECT_TRUE(absl::IsFailedPrecondition(ended)) << ended;
  EXPECT_EQ(coordinator_.waiting(), 0);
}

TEST_F(CoordinatorTest, CallsThatWaitForANewerMapAreBoundedForEachPeer) {
  Gather();
  const uint64_t epoch = coordinator_.shard_map().epoch();
  int refused = 0;
  std::vector<WaitList::Ticket> tickets;
  for (int i = 0; i < 100; ++i) {
    tickets.push_back(coordinator_.AwaitShardMap(epoch + 1, absl::Hours(1), "greedy", [&](auto map) {
      refused += absl::IsResourceExhausted(map.status()) ? 1 : 0;
    }));
  }
  EXPECT_EQ(refused, 92);
  EXPECT_EQ(coordinator_.waiting(), 8);
  EXPECT_NE(coordinator_.AwaitShardMap(epoch + 1, absl::Hours(1), "another", [](auto) {}), WaitList::kNoTicket);
  for (WaitList::Ticket ticket : tickets) coordinator_.CancelWait(ticket);
  EXPECT_EQ(coordinator_.waiting(), 1);
  EXPECT_NE(coordinator_.AwaitShardMap(epoch + 1, absl::Hours(1), "greedy", [](auto) {}), WaitList::kNoTicket);
}

// A coordinator that takes a checkpoint every minute, and its one server.
class CoordinatorCheckpointTest : public CoordinatorTest {
 protected:
  static v1::Job LongJob() {
    v1::Job job = Job();
    job.mutable_training()->set_epochs(100);
    job.mutable_durability()->set_mode(v1::Durability::CHECKPOINT);
    return job;
  }

  CoordinatorCheckpointTest() {
    std::filesystem::remove_all(folder_.path());
    std::filesystem::create_directories(folder_.path());
  }

  std::unique_ptr<Coordinator> Start(std::optional<internal::v1::CheckpointManifest> resume = std::nullopt) {
    auto coordinator = std::make_unique<Coordinator>(
        Coordinator::Options{.servers = 1, .workers = 2, .checkpoints = &folder_, .resume = std::move(resume)},
        &clock_);
    server_ = *coordinator->Join({MemberRole::kServer, 0, "127.0.0.1:1", "server process", {}, 0});
    for (Membership::Id* worker : {&worker0_, &worker1_}) {
      *worker = *coordinator->Join(
          {MemberRole::kWorker, std::nullopt, "", absl::StrCat("process ", worker == &worker0_), LongJob(), 20});
    }
    // The interval to the first checkpoint starts here.
    EXPECT_TRUE(coordinator->Heartbeat(server_).ok());
    return coordinator;
  }

  // Time passes, and all members send heartbeats.
  void Pass(Coordinator& coordinator, int seconds) {
    for (int i = 0; i < seconds; ++i) {
      clock_.Advance(absl::Seconds(1));
      for (const Membership::Id& id : {worker0_, worker1_, server_}) ASSERT_TRUE(coordinator.Heartbeat(id).ok());
    }
  }

  // The server does its part of the checkpoint in progress.
  void Write(Coordinator& coordinator, uint64_t id) {
    const std::string name = CheckpointFolder::ShardFileName(id, 0, 1);
    std::ofstream(folder_.PathOf(name)) << "weights";
    v1::CheckpointPart part;
    part.set_id(id);
    part.set_stage(v1::CheckpointPart::STAGE_WRITTEN);
    part.set_bytes(7);
    EXPECT_TRUE(coordinator.Heartbeat(server_, part).ok());
  }

  CheckpointFolder folder_{PosixFileSystem(), testing::TempDir() + "/coordinator-checkpoints"};
};

TEST_F(CoordinatorCheckpointTest, WaitsForDataThatIsHeldAndHandsOutNoMore) {
  const std::unique_ptr<Coordinator> coordinator = Start();
  std::vector<uint64_t> granted;
  const auto acquire = [&](const Membership::Id& id, std::vector<uint64_t> held = {}) {
    coordinator->AcquireLease(id, std::move(held), absl::Minutes(1), [&](auto grant) {
      if (grant.ok() && grant->lease.has_value()) granted.push_back(grant->lease->id);
    });
  };
  acquire(worker0_);
  acquire(worker1_);
  ASSERT_EQ(granted, (std::vector<uint64_t>{1, 2}));
  Pass(*coordinator, 60);
  EXPECT_TRUE(coordinator->Heartbeat(server_)->heartbeat_now);
  ASSERT_TRUE(coordinator->CompleteLease(worker0_, 1, 5, 6).ok());
  acquire(worker0_);
  EXPECT_EQ(granted.size(), 2) << "all meet at the same place";
  EXPECT_EQ(coordinator->Heartbeat(server_)->capture_checkpoint_id, 0) << "worker 1 holds data";
  ASSERT_TRUE(coordinator->CompleteLease(worker1_, 2, 5, 6).ok());
  EXPECT_EQ(coordinator->Heartbeat(server_)->capture_checkpoint_id, 1);
  EXPECT_EQ(granted.size(), 2);
  EXPECT_EQ(folder_.Newest().status().code(), absl::StatusCode::kNotFound);
  Write(*coordinator, 1);
  EXPECT_EQ(granted.size(), 3) << "worker 0 continues";
  const auto newest = folder_.Newest();
  ASSERT_TRUE(newest.ok()) << newest.status();

  const auto manifest = ReadManifest(newest->manifest_path);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  const std::unique_ptr<Coordinator> resumed = Start(*manifest);
  EXPECT_EQ(worker0_.incarnation, 2) << "above all incarnations of the first run";
  EXPECT_EQ(resumed->BeginningOf(worker1_).steps, 5);
  EXPECT_EQ(resumed->BeginningOf(worker1_).resumed_batches, 6);
  resumed->AcquireLease(worker0_, {}, absl::Seconds(1), [&](auto grant) {
    EXPECT_EQ(grant->lease->epoch, 1) << "the first epoch is done";
    EXPECT_EQ(grant->lease->id, 3) << "no id is given twice";
  });
}

// A restarted coordinator may be told to resume from the newest checkpoint.
TEST_F(CoordinatorCheckpointTest, ACheckpointOfTheJobItselfIsNotWhatItBeganFrom) {
  const auto beginning_again = [&](const Coordinator& before, const internal::v1::CheckpointManifest& newest) {
    Coordinator after({.servers = 1, .workers = 2, .resume = newest}, &clock_);
    EXPECT_TRUE(after.Restore(before.Export()).ok());
    const absl::StatusOr<Membership::Id> returned =
        after.Join({MemberRole::kWorker, 1, "", "process 0", LongJob(), 20});
    EXPECT_TRUE(returned.ok()) << returned.status();
    return after.BeginningOf(*returned);
  };
  const std::unique_ptr<Coordinator> coordinator = Start();
  Pass(*coordinator, 60);
  Write(*coordinator, coordinator->Heartbeat(server_)->capture_checkpoint_id);
  const auto first = ReadManifest(folder_.ManifestPath(1));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(beginning_again(*coordinator, *first).resumed_batches, std::nullopt);

  const std::unique_ptr<Coordinator> resumed = Start(*first);
  Coordinator restored({.servers = 1, .workers = 2, .resume = *first}, &clock_);
  ASSERT_TRUE(restored.Restore(resumed->Export()).ok());
  EXPECT_EQ(restored.BeginningOf(worker1_).resumed_batches, 0) << "it began from that checkpoint";
}

TEST_F(CoordinatorCheckpointTest, AFailureIsSaidAndTrainingGoesOn) {
  const std::unique_ptr<Coordinator> coordinator = Start();
  Pass(*coordinator, 60);
  ASSERT_EQ(coordinator->Heartbeat(server_)->capture_checkpoint_id, 1);
  v1::CheckpointPart part;
  part.set_id(1);
  part.set_stage(v1::CheckpointPart::STAGE_FAILED);
  part.set_failure("no space left");
  ASSERT_TRUE(coordinator->Heartbeat(server_, part).ok());
  ASSERT_EQ(coordinator->progress().notices_size(), 1);
  EXPECT_EQ(coordinator->progress().notices(0),
            "checkpoint 1 was abandoned: server 0: no space left; the next one is due in 1m");
  bool granted = false;
  coordinator->AcquireLease(worker0_, {}, absl::Seconds(1), [&](auto grant) { granted = grant->lease.has_value(); });
  EXPECT_TRUE(granted);
  EXPECT_EQ(coordinator->progress().state(), v1::JOB_STATE_RUNNING);
}

TEST_F(CoordinatorCheckpointTest, AnotherJobOrOtherDataIsRefused) {
  const std::unique_ptr<Coordinator> coordinator = Start();
  Pass(*coordinator, 60);
  ASSERT_EQ(coordinator->Heartbeat(server_)->capture_checkpoint_id, 1);
  Write(*coordinator, 1);
  const auto manifest = ReadManifest(folder_.ManifestPath(1));
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  Coordinator resumed({.servers = 1, .workers = 2, .resume = *manifest}, &clock_);
  const absl::Status other_data = resumed.Join({MemberRole::kWorker, 0, "", "worker process", LongJob(), 21}).status();
  EXPECT_EQ(other_data.message(), "cannot resume from checkpoint 1: it was trained on 20 examples, got 21");
  v1::Job other_job = LongJob();
  other_job.set_name("other");
  EXPECT_EQ(resumed.Join({MemberRole::kWorker, 0, "", "worker process", other_job, 20}).status().message(),
            "cannot resume from checkpoint 1: it belongs to job \"job\", got job \"other\"");
  EXPECT_TRUE(resumed.Join({MemberRole::kWorker, 0, "", "worker process", LongJob(), 20}).ok());
}

}  // namespace
}  // namespace ballast

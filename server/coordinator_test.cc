// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator.h"

#include <chrono>
#include <future>
#include <string>
#include <vector>

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

  ManualClock clock_;
  Coordinator coordinator_{{.servers = 1, .workers = 2}, &clock_};
  Membership::Id server_, worker0_, worker1_;
};

TEST_F(CoordinatorTest, RunsOnceAllHaveJoinedAndFinishesOnceAllLeasesAreDone) {
  server_ = *JoinServer(0);
  EXPECT_EQ(coordinator_.progress().reason(), "waits for worker 0, worker 1 to join");
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

TEST_F(CoordinatorTest, SilentMemberFailsTheJobAndTheOthersHearWho) {
  Gather();
  bool aborted = false;
  coordinator_.AcquireLease(worker0_, {}, absl::Hours(1), [](auto grant) { ASSERT_EQ(grant->lease->id, 1); });
  coordinator_.AcquireLease(worker0_, {1}, absl::Hours(1),
                            [&](auto grant) { aborted = grant.status().code() == absl::StatusCode::kAborted; });
  clock_.Advance(absl::Seconds(4));
  ASSERT_TRUE(coordinator_.Heartbeat(worker0_).ok());
  ASSERT_TRUE(coordinator_.Heartbeat(server_).ok());
  clock_.Advance(absl::Seconds(1));
  const auto verdict = coordinator_.Heartbeat(server_);
  ASSERT_TRUE(verdict.ok()) << verdict.status();
  EXPECT_EQ(verdict->state, v1::JOB_STATE_FAILED);
  EXPECT_EQ(verdict->reason, "worker 1 (worker process) was not heard of for 5s");
  EXPECT_TRUE(aborted) << "a wait for a lease ends with the job";
  EXPECT_EQ(JoinWorker(1).status().code(), absl::StatusCode::kFailedPrecondition);
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
            "job \"job\": worker process has 19 training examples, the others have 20");
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

}  // namespace
}  // namespace ballast

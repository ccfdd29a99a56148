// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "server/coordinator/testing/job_fixture.h"

namespace ballast {
namespace {

// A job of two leases per epoch whose training may end after one epoch without an improvement.
class EarlyStopJobTest : public JobControlTest {
 protected:
  static v1::Job Job(v1::Durability::Mode durability = v1::Durability::NONE) {
    v1::Job job = SyncJob(durability);
    job.mutable_training()->set_epochs(9);
    job.mutable_training()->mutable_early_stopping()->set_epochs(1);
    return job;
  }
  WorkerControl::Grant Ask(const Membership::Id& worker, uint32_t epochs_done = 0) {
    const auto grant = control_->workers().Acquire(worker, {}, now_, epochs_done);
    return grant.has_value() && grant->ok() ? **grant : WorkerControl::Grant();
  }
  // Both workers do their part of an epoch.
  void TrainAnEpoch() {
    for (const Membership::Id& worker : {worker0_, worker1_}) {
      const auto lease = Ask(worker).lease;
      ASSERT_TRUE(lease.has_value());
      ASSERT_TRUE(Complete(worker, lease->id).ok());
    }
  }
  void Evaluate(uint32_t epoch, double loss) {
    v1::Evaluation evaluation;
    evaluation.set_epoch(epoch);
    evaluation.set_loss(loss);
    ASSERT_TRUE(Report(worker0_, {}, &evaluation).ok());
  }
};

TEST_F(EarlyStopJobTest, InLockStepAnEpochBeginsOnceTheOneBeforeIsEvaluated) {
  Gather(Job());
  TrainAnEpoch();
  EXPECT_EQ(Ask(worker0_).epochs_done, 1);
  EXPECT_EQ(Ask(worker1_).epochs_done, 1) << "nobody pauses meanwhile";
  EXPECT_EQ(control_->workers().Acquire(worker1_, {}, now_, 1), std::nullopt) << "once";
  EXPECT_EQ(control_->workers().ExplainWait(), "worker 0 to evaluate epoch 1");
  control_->TakeActions();
  Evaluate(1, 4);
  EXPECT_GT(control_->TakeActions().publish, 0) << "waiting calls check again";
  TrainAnEpoch();
}

TEST_F(EarlyStopJobTest, EndsTheJobBetweenTwoEpochs) {
  Gather(Job());
  TrainAnEpoch();
  Evaluate(1, 4);
  TrainAnEpoch();
  EXPECT_FALSE(Progress().stopped_early());
  Evaluate(2, 5);
  EXPECT_EQ(State(), v1::JOB_STATE_FINISHED);
  EXPECT_TRUE(Progress().stopped_early());
  EXPECT_EQ(Progress().notices(0),
            "the training ends early: the test loss has not improved for 1 epoch; its best was 4 after epoch 1");
  EXPECT_TRUE(Ask(worker1_).finished);
  EXPECT_EQ(Ask(worker1_).epochs_done, 2);
}

TEST_F(EarlyStopJobTest, InAsyncTheLeasesThatAreHeldAreDoneBeforeItEnds) {
  v1::Job job = Job();
  job.mutable_policy()->mutable_async();
  Gather(job);
  TrainAnEpoch();
  const uint64_t held = Acquire(worker1_);
  EXPECT_NE(held, 0) << "the next epoch";
  Evaluate(1, 4);
  Evaluate(2, 5);
  EXPECT_EQ(Acquire(worker0_), 0);
  EXPECT_EQ(State(), v1::JOB_STATE_RUNNING);
  ASSERT_TRUE(Complete(worker1_, held).ok());
  EXPECT_EQ(State(), v1::JOB_STATE_FINISHED);
  Evaluate(3, 1);
  EXPECT_TRUE(Progress().stopped_early()) << "the last evaluation does not change that";
}

TEST_F(EarlyStopJobTest, WithoutWorker0NobodyWaitsForItsEvaluation) {
  Gather(Job());
  TrainAnEpoch();
  ASSERT_TRUE(Leave(worker0_, "killed", /*worker_local=*/true).ok());
  EXPECT_NE(Acquire(worker1_), 0);
}

TEST_F(EarlyStopJobTest, ItsStateOutlivesTheCoordinator) {
  Gather(Job(v1::Durability::WAL));
  TrainAnEpoch();
  Evaluate(1, 4);
  TrainAnEpoch();
  const internal::v1::CoordinatorState saved = control_->Export(now_);
  control_.emplace(JobOptions{.servers = 1, .workers = 2}, now_);
  ASSERT_TRUE(control_->Restore(saved, now_).ok());
  Evaluate(2, 5);
  EXPECT_EQ(State(), v1::JOB_STATE_FINISHED);
  const internal::v1::CoordinatorState ended = control_->Export(now_);
  control_.emplace(JobOptions{.servers = 1, .workers = 2}, now_);
  ASSERT_TRUE(control_->Restore(ended, now_).ok());
  EXPECT_TRUE(Ask(worker0_).finished);
  EXPECT_TRUE(Progress().stopped_early());
}
}  // namespace
}  // namespace ballast

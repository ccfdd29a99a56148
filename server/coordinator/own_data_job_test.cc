// SPDX-License-Identifier: Apache-2.0
#include "common/status/error_reason.h"
#include "server/coordinator/testing/job_fixture.h"

namespace ballast {
namespace {

// A job whose workers bring their own model and data.
class OwnDataTest : public JobControlTest {
 protected:
  static v1::Job Named() {
    v1::Job job;
    job.set_name("job");
    return job;
  }
  void Gather() { JobControlTest::Gather(Named(), 0); }
};

TEST_F(OwnDataTest, RunsWithANameAloneAndIsFinishedWhenAllWorkersHaveLeft) {
  Gather();
  EXPECT_EQ(State(), v1::JOB_STATE_RUNNING);
  v1::WorkerProgress progress;
  progress.set_step(7);
  ASSERT_TRUE(Report(worker0_, progress).ok());
  EXPECT_EQ(Progress().step(), 7);
  ASSERT_TRUE(Leave(worker1_, "").ok());
  EXPECT_EQ(State(), v1::JOB_STATE_RUNNING);
  EXPECT_EQ(Progress().notices_size(), 0);
  // The job does not wait for a worker that has left.
  ASSERT_EQ(Beat(server_)->absent.size(), 1);
  EXPECT_EQ(Beat(server_)->absent[0].rank, 1);
  ASSERT_TRUE(Leave(worker0_, "").ok());
  EXPECT_EQ(State(), v1::JOB_STATE_FINISHED);
}

TEST_F(OwnDataTest, HasNoLeases) {
  Gather();
  const absl::Status acquired = control_->workers().Acquire(worker0_, {}, now_)->status();
  EXPECT_EQ(acquired.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReasonOf(acquired), v1::ERROR_REASON_NO_DATA);
  EXPECT_EQ(ReasonOf(Complete(worker0_, 1)), v1::ERROR_REASON_NO_DATA);
}

TEST_F(OwnDataTest, GoesOnWithoutAWorkerThatIsLostUntilTheOthersHaveLeft) {
  Gather();
  Silence({server_, worker0_}, absl::Seconds(5));
  EXPECT_EQ(Progress().workers_lost(), 1);
  ASSERT_EQ(Beat(server_)->absent.size(), 1);
  ASSERT_TRUE(Leave(worker0_, "").ok());
  // It may return within the usual time.
  EXPECT_EQ(State(), v1::JOB_STATE_RUNNING);
  Silence({server_}, absl::Seconds(61));
  EXPECT_EQ(State(), v1::JOB_STATE_FINISHED);
}

TEST_F(OwnDataTest, ALostWorkerMayReturnAndGoOn) {
  Gather();
  Silence({server_, worker0_}, absl::Seconds(5));
  const absl::StatusOr<Membership::Id> again = JoinWorker(1, Named(), 0);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->incarnation, 2);
  EXPECT_EQ(Beat(server_)->absent.size(), 0);
  ASSERT_TRUE(Leave(worker0_, "").ok());
  ASSERT_TRUE(Leave(*again, "").ok());
  EXPECT_EQ(State(), v1::JOB_STATE_FINISHED);
}

TEST_F(OwnDataTest, FailsWhenAWorkerDoesOrNobodyIsLeft) {
  Gather();
  ASSERT_TRUE(Leave(worker0_, "the loss is NaN").ok());
  EXPECT_EQ(State(), v1::JOB_STATE_FAILED);
  control_.emplace(JobOptions{.servers = 1, .workers = 1}, now_);
  server_ = *JoinServer(0);
  ASSERT_TRUE(JoinWorker(0, Named(), 0).ok());
  Silence({server_}, absl::Seconds(70));
  EXPECT_EQ(State(), v1::JOB_STATE_FAILED);
}

TEST_F(OwnDataTest, ItsStateOutlivesTheCoordinator) {
  Gather();
  const internal::v1::CoordinatorState saved = control_->Export(now_);
  control_.emplace(JobOptions{.servers = 1, .workers = 2}, now_);
  ASSERT_TRUE(control_->Restore(saved, now_).ok());
  EXPECT_EQ(State(), v1::JOB_STATE_RUNNING);
  ASSERT_TRUE(Leave(worker0_, "").ok());
  ASSERT_TRUE(Leave(worker1_, "").ok());
  EXPECT_EQ(State(), v1::JOB_STATE_FINISHED);
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

TEST_F(OwnDataTest, MayRelyOnCheckpoints) {
  v1::Job job = Named();
  job.mutable_durability()->set_mode(v1::Durability::CHECKPOINT);
  EXPECT_TRUE(JoinWorker(0, job, 0).ok());
}
}  // namespace
}  // namespace ballast

// SPDX-License-Identifier: Apache-2.0
#include <signal.h>

#include "absl/strings/match.h"
#include "cli/launch/job_launch.h"
#include "cli/launch/testing/job_launch_fixture.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::SaveCheckpointResponse Saving(uint64_t id) {
  v1::SaveCheckpointResponse save;
  save.set_id(id);
  save.set_pending(true);
  save.set_waiting_for("worker 1");
  return save;
}

v1::SaveCheckpointResponse Saved(uint64_t id, uint64_t step, uint32_t epoch) {
  v1::SaveCheckpointResponse save;
  save.set_id(id);
  save.set_step(step);
  save.set_epoch(epoch);
  return save;
}

TEST_F(JobLaunchTest, TakesACheckpointBeforeItStopsTheWorkers) {
  plan_.durability.set_mode(v1::Durability::CHECKPOINT);
  progress_.saves = {Saving(7), Saving(7), Saved(7, 1876, 4)};
  worker_ = "trap 'echo saved; exit 130' TERM; echo ready; stay\n";
  int asked = 0, saved_before = 0;
  asked_ = [&] {
    if (Shown("stopping: ") && ++asked == 3) saved_before = absl::StrContains(Log("worker-0"), "saved");
    if (WorkersAreReady() && !Shown("stopping: ")) raise(SIGTERM);
  };
  EXPECT_EQ(Run().exit_status, 130);
  EXPECT_EQ(asked, 3);
  EXPECT_EQ(saved_before, 0) << "the workers still had to finish their leases";
  EXPECT_THAT(shown_.str(), HasSubstr("stopping: the job takes a checkpoint, then the workers save; press Ctrl-C "
                                      "again to stop immediately\n"));
  EXPECT_THAT(shown_.str(), HasSubstr("checkpoint 7 saved at step 1876, epoch 4\n"));
  EXPECT_THAT(Log("worker-0"), HasSubstr("saved"));
}

TEST_F(JobLaunchTest, WaitsForTheLastCheckpointOfAFinishedJob) {
  plan_.durability.set_mode(v1::Durability::WAL);
  progress_.saves = {Saving(2), Saved(2, 60, 3)};
  RunWell();
  EXPECT_THAT(shown_.str(), HasSubstr("checkpoint 2 saved at step 60, epoch 3\n"));
}

TEST_F(JobLaunchTest, SaysWhyThereIsNoCheckpoint) {
  plan_.durability.set_mode(v1::Durability::WAL);
  v1::SaveCheckpointResponse failed = Saved(2, 0, 0);
  failed.set_failure("server 1: no space left");
  progress_.saves = {Saving(2), failed};
  RunWell();
  EXPECT_THAT(shown_.str(), HasSubstr("no checkpoint was saved: server 1: no space left\n"));
}

TEST_F(JobLaunchTest, SaysThatTheCoordinatorRefuses) {
  plan_.durability.set_mode(v1::Durability::WAL);
  RunWell();
  EXPECT_THAT(shown_.str(), HasSubstr("no checkpoint was saved: no token\n"));
}

TEST_F(JobLaunchTest, ASecondInterruptDoesNotWaitForTheCheckpoint) {
  plan_.durability.set_mode(v1::Durability::WAL);
  progress_.saves = {Saving(2)};
  worker_ = kWaitForTerm;
  asked_ = [&] {
    if (WorkersAreReady()) raise(SIGINT);
  };
  EXPECT_EQ(Run().exit_status, 130);
  EXPECT_LT(seconds_, 10);
  EXPECT_THAT(shown_.str(), Not(HasSubstr("checkpoint was saved")));
}

}  // namespace
}  // namespace ballast

// SPDX-License-Identifier: Apache-2.0
#include "common/status/job_failure.h"

#include "common/status/error_reason.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(JobFailureTest, NamesTheMemberAtFault) {
  v1::JobFailure failure;
  failure.mutable_member()->set_role(v1::ROLE_WORKER);
  failure.mutable_member()->set_rank(3);
  failure.set_process(4711);
  const absl::Status status = JobFailedError("worker 3 failed: no data", failure);
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(status.message(), "the job has failed: worker 3 failed: no data");
  EXPECT_EQ(ReasonOf(status), v1::ERROR_REASON_JOB_FAILED);
  EXPECT_EQ(SubjectOf(status, "role"), "worker");
  EXPECT_EQ(SubjectOf(status, "rank"), "3");
  EXPECT_EQ(SubjectOf(status, "process"), "4711");
}

TEST(JobFailureTest, TellsTheLossOfAServerFromOtherFailures) {
  v1::JobFailure failure;
  failure.mutable_member()->set_role(v1::ROLE_SERVER);
  EXPECT_TRUE(IsLossOfServer(JobFailedError("server 1 was lost", failure)));
  EXPECT_FALSE(IsLossOfServer(WithSubjects(absl::UnavailableError("not of a job"), {{"role", "server"}})));
  failure.mutable_member()->set_role(v1::ROLE_WORKER);
  EXPECT_FALSE(IsLossOfServer(JobFailedError("worker 1 failed", failure)));
  EXPECT_FALSE(IsLossOfServer(absl::OkStatus()));
}

TEST(JobFailureTest, NamesNobodyWhereNoSingleMemberIsAtFault) {
  EXPECT_EQ(SubjectOf(JobFailedError("no worker was left", v1::JobFailure()), "role"), "");
}

}  // namespace

}  // namespace ballast

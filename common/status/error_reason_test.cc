// SPDX-License-Identifier: Apache-2.0
#include "common/status/error_reason.h"

#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(ErrorReasonTest, ReasonAndSubjectsCrossTheWire) {
  const absl::Status sent = WithReason(v1::ERROR_REASON_STALE_INCARNATION,
                                       absl::FailedPreconditionError("worker 3 restarted"), {{"rank", "3"}});
  const absl::Status received =
      DecodeErrorDetails(absl::FailedPreconditionError("worker 3 restarted"), EncodeErrorDetails(sent));
  EXPECT_EQ(ReasonOf(received), v1::ERROR_REASON_STALE_INCARNATION);
  EXPECT_EQ(SubjectOf(received, "rank"), "3");
  EXPECT_EQ(received.message(), "worker 3 restarted");
}

TEST(ErrorReasonTest, FirstReasonStaysWhenAnotherIsAdded) {
  const absl::Status inner = WithReason(v1::ERROR_REASON_NOT_OWNER, absl::FailedPreconditionError("moved"));
  const absl::Status outer = WithReason(v1::ERROR_REASON_WRONG_JOB, inner, {{"tensor", "w"}});
  EXPECT_EQ(ReasonOf(outer), v1::ERROR_REASON_NOT_OWNER);
  EXPECT_EQ(SubjectOf(outer, "tensor"), "w");
  const std::map<std::string, std::string> subjects = {{"tensor", "w"}};
  EXPECT_EQ(SubjectsOf(outer), subjects);
  EXPECT_TRUE(SubjectsOf(absl::InternalError("x")).empty());
}

TEST(ErrorReasonTest, ContextKeepsReason) {
  const absl::Status status =
      Annotate(WithReason(v1::ERROR_REASON_NO_JOB, absl::FailedPreconditionError("no job")), "shard 2");
  EXPECT_EQ(status.message(), "shard 2: no job");
  EXPECT_EQ(ReasonOf(status), v1::ERROR_REASON_NO_JOB);
}

TEST(ErrorReasonTest, CodeImpliesReasonUnlessItMeansManyThings) {
  EXPECT_EQ(ReasonOf(absl::InvalidArgumentError("x")), v1::ERROR_REASON_INVALID_REQUEST);
  EXPECT_EQ(ReasonOf(absl::FailedPreconditionError("x")), v1::ERROR_REASON_UNSPECIFIED);
  EXPECT_EQ(ReasonOf(absl::OkStatus()), v1::ERROR_REASON_UNSPECIFIED);
}

TEST(ErrorReasonTest, DamagedDetailsLeaveCodeAndMessage) {
  const absl::Status status = DecodeErrorDetails(absl::InternalError("x"), "\xff\xff\xff");
  EXPECT_EQ(status, absl::InternalError("x"));
}

}  // namespace
}  // namespace ballast

// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/grpc_status.h"

#include <string>

#include "common/status/error_reason.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(GrpcStatusTest, CarriesCodeAndMessageThereAndBack) {
  const absl::Status status = absl::FailedPreconditionError("worker 1 is gone");
  const grpc::Status wire = ToGrpcStatus(status);
  EXPECT_EQ(wire.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(FromGrpcStatus(wire).code(), status.code());
  EXPECT_EQ(FromGrpcStatus(wire).message(), status.message());
}

TEST(GrpcStatusTest, CarriesReasonAndSubjects) {
  const absl::Status status =
      WithReason(v1::ERROR_REASON_RANK_TAKEN, absl::AlreadyExistsError("rank 2 is taken"), {{"rank", "2"}});
  EXPECT_EQ(FromGrpcStatus(ToGrpcStatus(status), "join"), Annotate(status, "join"));
}

TEST(GrpcStatusTest, KeepsMessageAndReasonWithinGrpcsHeaderLimit) {
  std::string message;
  for (int i = 0; i < 10000; ++i) message += "\xe2\x82\xac";
  const grpc::Status wire = ToGrpcStatus(absl::InvalidArgumentError(message));
  EXPECT_LT(wire.error_message().size() * 3 + wire.error_details().size() * 4 / 3, 7 * 1024);
  EXPECT_EQ(ReasonOf(FromGrpcStatus(wire)), v1::ERROR_REASON_INVALID_REQUEST);
}

TEST(GrpcStatusTest, CutsAMessageThatWouldNotFitIntoAHeader) {
  const grpc::Status wire = ToGrpcStatus(absl::InvalidArgumentError(std::string(100000, 'x')));
  EXPECT_EQ(wire.error_message(), std::string(1500, 'x') + " ... (truncated)");
}

TEST(GrpcStatusTest, PutsContextBeforeTheMessageOfAFailureOnly) {
  EXPECT_EQ(FromGrpcStatus(grpc::Status(grpc::StatusCode::UNAVAILABLE, "refused"), "shard 3").message(),
            "shard 3: refused");
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK, "shard 3").ok());
}

}  // namespace
}  // namespace ballast

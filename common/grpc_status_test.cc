// SPDX-License-Identifier: Apache-2.0
#include "common/grpc_status.h"

#include <string>

#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(GrpcStatusTest, CarriesCodeAndMessageThereAndBack) {
  const absl::Status status = absl::FailedPreconditionError("worker 1 is gone");
  const grpc::Status wire = ToGrpcStatus(status);
  EXPECT_EQ(wire.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(FromGrpcStatus(wire), status);
}

TEST(GrpcStatusTest, CutsAMessageThatWouldNotFitIntoAHeader) {
  const grpc::Status wire = ToGrpcStatus(absl::InvalidArgumentError(std::string(100000, 'x')));
  EXPECT_EQ(wire.error_message(), std::string(2000, 'x') + " ... (cut)");
}

TEST(GrpcStatusTest, PutsContextBeforeTheMessageOfAFailureOnly) {
  EXPECT_EQ(FromGrpcStatus(grpc::Status(grpc::StatusCode::UNAVAILABLE, "refused"), "shard 3").message(),
            "shard 3: refused");
  EXPECT_TRUE(FromGrpcStatus(grpc::Status::OK, "shard 3").ok());
}

}  // namespace
}  // namespace ballast

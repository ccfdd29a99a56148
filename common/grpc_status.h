// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/support/status.h"

namespace ballast {

// The codes of absl::Status and grpc::Status are the same numbers; these carry code and message across. A message that
// gRPC would not take for its length is cut.
grpc::Status ToGrpcStatus(const absl::Status& status);

// `context` ("shard 3 at host:port: push") is put before the message of a failure; empty adds nothing.
absl::Status FromGrpcStatus(const grpc::Status& status, absl::string_view context = "");

}  // namespace ballast

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/support/status.h"

namespace ballast {

// The codes of absl::Status and grpc::Status are the same numbers; these functions convert code, message, reason and
// subjects (common/status/error_reason.h). A message too long for gRPC is truncated. A failure without a reason gets
// the one that its code implies.
grpc::Status ToGrpcStatus(const absl::Status& status);

// Prepends `context` ("shard 3 at host:port: push") to the message of a failure; empty adds nothing.
absl::Status FromGrpcStatus(const grpc::Status& status, absl::string_view context = "");

}  // namespace ballast

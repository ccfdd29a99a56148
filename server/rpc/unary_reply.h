// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/support/server_callback.h"

namespace ballast {

// What the adapters of both services do alike.

// Ends a call at once.
grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const absl::Status& status);

// The status with when a caller that was refused for want of room shall try again, in its metadata and in a trailer;
// any other status as it is.
absl::Status WithRetryDelay(const absl::Status& status, grpc::CallbackServerContext& context);

// The wait that a request asks for: 1 to 600000 ms, and 30000 for 0. INVALID_ARGUMENT beyond.
absl::StatusOr<absl::Duration> DecodeWait(uint32_t wait_ms);

// Answers each call with UNIMPLEMENTED, and reads no message of it. A port has one for the methods that none of its
// other services has. Thread safety: all methods may be called from any thread.
class UnknownMethods : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;
};

}  // namespace ballast

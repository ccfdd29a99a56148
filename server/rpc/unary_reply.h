// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/generic/async_generic_service.h"
#include "grpcpp/support/server_callback.h"

namespace ballast {

// Functions that the adapters of both services share.

// Ends a call at once.
grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const absl::Status& status);

// Adds to RESOURCE_EXHAUSTED the delay after which the caller should retry; returns any other status unchanged.
absl::Status WithRetryDelay(const absl::Status& status);
// Same, and also adds it to the call's trailers.
absl::Status WithRetryDelay(const absl::Status& status, grpc::CallbackServerContext& context);

// Returns the wait that a request asks for: 1 to 600000 ms, 30000 ms for 0; INVALID_ARGUMENT above that.
absl::StatusOr<absl::Duration> DecodeWait(uint32_t wait_ms);

// Responds to each call with UNIMPLEMENTED without reading its message. Each port has one for methods that its other
// services lack. Thread safety: all methods may be called from any thread.
class UnknownMethods : public grpc::CallbackGenericService {
 public:
  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext* context) override;
};

}  // namespace ballast

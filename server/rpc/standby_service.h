// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "ballast/internal/v1/standby_service.grpc.pb.h"
#include "grpcpp/channel.h"
#include "server/replication/shard_stream.h"
#include "server/replication/standby_receiver.h"
#include "server/rpc/port/access_guard.h"

namespace ballast {

// Passes the stream of ballast.internal.v1.StandbyService to a receiver. A message that does not parse ends the
// stream with INVALID_ARGUMENT and the reason MALFORMED_MESSAGE. Thread safety: all methods may be called from any
// thread.
class StandbyServiceAdapter : public internal::v1::StandbyService::CallbackService {
 public:
  // Both must outlive the server with which this is registered.
  StandbyServiceAdapter(StandbyReceiver* receiver, const AccessGuard* access);
};

// Calls ballast.internal.v1.StandbyService.Replicate. Does not block: a standby that cannot be reached ends the stream.
std::unique_ptr<StandbyStream> CallStandby(const std::shared_ptr<grpc::Channel>& channel);

}  // namespace ballast

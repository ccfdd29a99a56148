// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include "grpcpp/channel.h"
#include "server/replication/standby_stream.h"

namespace ballast {

// Calls ballast.internal.v1.StandbyService.Replicate. Does not block: a standby that cannot be reached ends the stream.
std::unique_ptr<StandbyStream> CallStandby(const std::shared_ptr<grpc::Channel>& channel);

}  // namespace ballast

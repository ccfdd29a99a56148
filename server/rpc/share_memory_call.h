// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "ballast/v1/parameter_service.pb.h"
#include "grpcpp/support/server_callback.h"
#include "server/rpc/region_registry.h"
#include "server/shard/parameter_shard.h"

namespace ballast {

// Serves ParameterService.ShareMemory: gives the client a region until the call ends, or ends the call with `access`
// if that is an error. `shard` and `registry` outlive the call.
grpc::ServerWriteReactor<v1::ShareMemoryResponse>* ShareMemory(const absl::Status& access,
                                                               const v1::ShareMemoryRequest& request,
                                                               const ParameterShard& shard, uint32_t rank,
                                                               RegionRegistry& registry);

}  // namespace ballast

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "ballast/v1/parameter_service.pb.h"
#include "grpcpp/support/server_callback.h"
#include "server/rpc/region_registry.h"
#include "server/shard/parameter_shard.h"

namespace ballast {

// Answers ParameterService.ShareMemory: gives the client an region that it has until the call ends, or where `access`
// is an error, that. Both outlive the call.
grpc::ServerWriteReactor<v1::ShareMemoryResponse>* ShareMemory(const absl::Status& access,
                                                               const v1::ShareMemoryRequest& request,
                                                               const ParameterShard& shard, uint32_t rank,
                                                               RegionRegistry& registry);

}  // namespace ballast

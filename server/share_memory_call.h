// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "ballast/v1/parameter_service.pb.h"
#include "grpcpp/support/server_callback.h"
#include "server/area_registry.h"
#include "server/parameter_shard.h"

namespace ballast {

// Answers ParameterService.ShareMemory: gives the client an area that it has until the call ends. Both outlive the
// call.
grpc::ServerWriteReactor<v1::ShareMemoryResponse>* ShareMemory(const v1::ShareMemoryRequest& request,
                                                               const ParameterShard& shard, uint32_t rank,
                                                               AreaRegistry& registry);

}  // namespace ballast

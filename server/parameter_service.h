// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ballast/v1/parameter_service.grpc.pb.h"
#include "server/parameter_shard.h"

namespace ballast {

// Decodes calls of ballast.v1.ParameterService, calls the shard, encodes its answers. Holds nothing itself.
// Thread safety: all methods may be called from any thread.
class ParameterServiceAdapter : public v1::ParameterService::CallbackService {
 public:
  // `shard` must outlive the server that this is registered with.
  ParameterServiceAdapter(uint32_t rank, ParameterShard* shard) : rank_(rank), shard_(shard) {}

  grpc::ServerUnaryReactor* DeclareTensors(grpc::CallbackServerContext* context,
                                           const v1::DeclareTensorsRequest* request,
                                           v1::DeclareTensorsResponse* response) override;
  grpc::ServerUnaryReactor* Push(grpc::CallbackServerContext* context, const v1::PushRequest* request,
                                 v1::PushResponse* response) override;
  grpc::ServerUnaryReactor* Pull(grpc::CallbackServerContext* context, const v1::PullRequest* request,
                                 v1::PullResponse* response) override;
  grpc::ServerUnaryReactor* PushPull(grpc::CallbackServerContext* context, const v1::PushPullRequest* request,
                                     v1::PushPullResponse* response) override;
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context, const v1::GetStatusRequest* request,
                                      v1::GetStatusResponse* response) override;

 private:
  const uint32_t rank_;
  ParameterShard* const shard_;
};

}  // namespace ballast

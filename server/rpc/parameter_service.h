// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/functional/any_invocable.h"
#include "ballast/v1/parameter_service.grpc.pb.h"
#include "common/concurrency/executor.h"
#include "server/rpc/data_plane.h"
#include "server/rpc/port/access_guard.h"
#include "server/rpc/watch/row_watch_calls.h"
#include "server/shard/parameter_shard.h"

namespace ballast {

// The generated service without the calls that carry payloads, which the data plane serves.
using ControlledParameterService = v1::ParameterService::WithCallbackMethod_DeclareTensors<
    v1::ParameterService::WithGenericMethod_Push<v1::ParameterService::WithGenericMethod_Pull<
        v1::ParameterService::WithGenericMethod_PushPull<v1::ParameterService::WithGenericMethod_SetValues<
            v1::ParameterService::WithGenericMethod_PullRows<v1::ParameterService::WithGenericMethod_PushRows<
                v1::ParameterService::WithCallbackMethod_Pause<v1::ParameterService::WithCallbackMethod_ReportVersions<
                    v1::ParameterService::WithCallbackMethod_InspectRows<
                        v1::ParameterService::WithCallbackMethod_ShareMemory<
                            v1::ParameterService::WithCallbackMethod_OpenDataStream<
                                v1::ParameterService::WithRawCallbackMethod_WatchRows<
                                    v1::ParameterService::WithCallbackMethod_GetStatus<
                                        v1::ParameterService::Service>>>>>>>>>>>>>>;

// Decodes the calls of ballast.v1.ParameterService that carry no payload, calls the shard, and encodes its responses.
// Owns no state. Thread safety: all methods may be called from any thread.
class ParameterServiceAdapter : public ControlledParameterService {
 public:
  // Threads for work that may take long; gRPC's few threads also serve heartbeats and must not wait.
  struct Executors {
    // Creates tensors, one declaration after another.
    Executor* declarations = nullptr;
    // Makes changes that may wait for a disk.
    Executor* changes = nullptr;
  };

  // All arguments must outlive the server with which this is registered.
  ParameterServiceAdapter(uint32_t rank, ParameterShard* shard, DataPlane* data_plane, const AccessGuard* access,
                          const ServingGate* serving, RowWatchCalls* watches, const Executors& executors);

  grpc::ServerUnaryReactor* DeclareTensors(grpc::CallbackServerContext* context,
                                           const v1::DeclareTensorsRequest* request,
                                           v1::DeclareTensorsResponse* response) override;
  grpc::ServerUnaryReactor* ReportVersions(grpc::CallbackServerContext* context,
                                           const v1::ReportVersionsRequest* request,
                                           v1::ReportVersionsResponse* response) override;
  grpc::ServerUnaryReactor* Pause(grpc::CallbackServerContext* context, const v1::PauseRequest* request,
                                  v1::PauseResponse* response) override;
  grpc::ServerUnaryReactor* InspectRows(grpc::CallbackServerContext* context, const v1::InspectRowsRequest* request,
                                        v1::InspectRowsResponse* response) override;
  grpc::ServerWriteReactor<v1::ShareMemoryResponse>* ShareMemory(grpc::CallbackServerContext* context,
                                                                 const v1::ShareMemoryRequest* request) override;
  grpc::ServerUnaryReactor* OpenDataStream(grpc::CallbackServerContext* context,
                                           const v1::OpenDataStreamRequest* request,
                                           v1::OpenDataStreamResponse* response) override;
  // Encodes its responses itself, so that watchers share the bytes.
  grpc::ServerWriteReactor<grpc::ByteBuffer>* WatchRows(grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request) override;
  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context, const v1::GetStatusRequest* request,
                                      v1::GetStatusResponse* response) override;

  // Returns what GetStatus answers.
  v1::GetStatusResponse Describe() const;

 private:
  absl::Status Check(const grpc::CallbackServerContext& context, absl::string_view method,
                     const std::string& job) const;
  // Runs `change` on the executor and ends the call with its result, once its changes are durable. Until then the
  // memory of the parsed request counts as bytes in flight.
  grpc::ServerUnaryReactor* AnswerLater(grpc::CallbackServerContext* context, Executor* executor,
                                        const google::protobuf::Message& request,
                                        absl::AnyInvocable<absl::Status()> change);

  const uint32_t rank_;
  ParameterShard* const shard_;
  DataPlane* const data_plane_;
  const AccessGuard* const access_;
  const ServingGate* const serving_;
  RowWatchCalls* const watches_;
  const Executors executors_;
};

// The generated service with GetStatus only. The generic service refuses the other methods without parsing them.
using StatusOnlyParameterService = v1::ParameterService::WithGenericMethod_DeclareTensors<
    v1::ParameterService::WithGenericMethod_Push<v1::ParameterService::WithGenericMethod_Pull<
        v1::ParameterService::WithGenericMethod_PushPull<v1::ParameterService::WithGenericMethod_SetValues<
            v1::ParameterService::WithGenericMethod_PullRows<v1::ParameterService::WithGenericMethod_PushRows<
                v1::ParameterService::WithGenericMethod_Pause<v1::ParameterService::WithGenericMethod_ReportVersions<
                    v1::ParameterService::WithGenericMethod_InspectRows<
                        v1::ParameterService::WithGenericMethod_ShareMemory<
                            v1::ParameterService::WithGenericMethod_OpenDataStream<
                                v1::ParameterService::WithGenericMethod_WatchRows<
                                    v1::ParameterService::WithCallbackMethod_GetStatus<
                                        v1::ParameterService::Service>>>>>>>>>>>>>>;

// Serves GetStatus, the only call of ballast.v1.ParameterService that a control port accepts. All others go to the
// port's generic service, UnknownMethods. Thread safety: all methods may be called from any thread.
class ShardStatusService : public StatusOnlyParameterService {
 public:
  // The adapter must outlive the server with which this is registered.
  explicit ShardStatusService(ParameterServiceAdapter* adapter);

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context, const v1::GetStatusRequest* request,
                                      v1::GetStatusResponse* response) override {
    return adapter_->GetStatus(context, request, response);
  }

 private:
  ParameterServiceAdapter* const adapter_;
};

}  // namespace ballast

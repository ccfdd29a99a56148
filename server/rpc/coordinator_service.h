// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ballast/v1/coordinator_service.grpc.pb.h"
#include "server/coordinator/coordinator.h"
#include "server/rpc/port/access_guard.h"

namespace ballast {

// Decodes calls of ballast.v1.CoordinatorService, calls the coordinator, and encodes its responses. Owns no state.
// Thread safety: all methods may be called from any thread.
class CoordinatorServiceAdapter : public v1::CoordinatorService::CallbackService {
 public:
  // Both must outlive the server with which this is registered.
  CoordinatorServiceAdapter(Coordinator* coordinator, const AccessGuard* access);

  grpc::ServerUnaryReactor* Join(grpc::CallbackServerContext* context, const v1::JoinRequest* request,
                                 v1::JoinResponse* response) override;
  grpc::ServerUnaryReactor* Heartbeat(grpc::CallbackServerContext* context, const v1::HeartbeatRequest* request,
                                      v1::HeartbeatResponse* response) override;
  grpc::ServerUnaryReactor* Leave(grpc::CallbackServerContext* context, const v1::LeaveRequest* request,
                                  v1::LeaveResponse* response) override;
  grpc::ServerUnaryReactor* PlaceTensors(grpc::CallbackServerContext* context, const v1::PlaceTensorsRequest* request,
                                         v1::PlaceTensorsResponse* response) override;
  grpc::ServerUnaryReactor* GetShardMap(grpc::CallbackServerContext* context, const v1::GetShardMapRequest* request,
                                        v1::GetShardMapResponse* response) override;
  grpc::ServerUnaryReactor* AcquireLease(grpc::CallbackServerContext* context, const v1::AcquireLeaseRequest* request,
                                         v1::AcquireLeaseResponse* response) override;
  grpc::ServerUnaryReactor* CompleteLease(grpc::CallbackServerContext* context, const v1::CompleteLeaseRequest* request,
                                          v1::CompleteLeaseResponse* response) override;
  grpc::ServerUnaryReactor* ReportProgress(grpc::CallbackServerContext* context,
                                           const v1::ReportProgressRequest* request,
                                           v1::ReportProgressResponse* response) override;
  grpc::ServerUnaryReactor* GetProgress(grpc::CallbackServerContext* context, const v1::GetProgressRequest* request,
                                        v1::GetProgressResponse* response) override;
  grpc::ServerUnaryReactor* SaveCheckpoint(grpc::CallbackServerContext* context,
                                           const v1::SaveCheckpointRequest* request,
                                           v1::SaveCheckpointResponse* response) override;

 private:
  // Deletes itself.
  // Ends the call once the coordinator has saved all changes so far. No thread waits for that.
  grpc::ServerUnaryReactor* AnswerSaved(grpc::CallbackServerContext* context, const absl::Status& status);
  // Ends a heartbeat call the same way once that change is saved. Responds to a failed save with UNAVAILABLE.
  grpc::ServerUnaryReactor* AnswerHeartbeat(grpc::CallbackServerContext* context, const Membership::Id& member,
                                            uint64_t change);

  Coordinator* const coordinator_;
  const AccessGuard* const access_;
};

}  // namespace ballast

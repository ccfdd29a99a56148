// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/coordinator_service.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "common/program/this_process.h"
#include "common/rpc/grpc_status.h"
#include "common/status/error_reason.h"
#include "server/rpc/cancellable_wait.h"
#include "server/rpc/parsed_request.h"
#include "server/rpc/unary_reply.h"

namespace ballast {
namespace {

// Heartbeat interval of servers while workers wait for a checkpoint.
constexpr absl::Duration kHastyInterval = absl::Milliseconds(10);

constexpr absl::Duration kMaxMapWait = absl::Seconds(60);

// A call that may wait before its response; the wait ends if the caller cancels. Deletes itself when finished.
class WaitingCall : public grpc::ServerUnaryReactor {
 public:
  explicit WaitingCall(Coordinator* coordinator)
      : wait_(std::make_shared<CancellableWait>(
            [coordinator](WaitList::Ticket ticket) { coordinator->CancelWait(ticket); })) {}

  const std::shared_ptr<CancellableWait>& wait() const { return wait_; }

  void OnCancel() override { wait_->Cancel(); }
  void OnDone() override { delete this; }

 private:
  // Shared with the thread that begins the wait, because the call may end before that returns.
  const std::shared_ptr<CancellableWait> wait_;
};

// A caller that joins as a server receives the workers' gradients, so it needs the admin role.
AccessRole LeastRoleOf(v1::Role role) { return role == v1::ROLE_WORKER ? AccessRole::kWorker : AccessRole::kAdmin; }

// A disk may be full for a while. Members retry a heartbeat after UNAVAILABLE for as long as for an unreachable
// coordinator; any other error would end them at once.
absl::Status WithCodeOfPassing(const absl::Status& saved) {
  if (saved.ok()) return saved;
  absl::Status passing(absl::StatusCode::kUnavailable, saved.message());
  saved.ForEachPayload([&](absl::string_view url, const absl::Cord& payload) { passing.SetPayload(url, payload); });
  return passing;
}

absl::Status CheckVersion(const v1::JoinRequest& request) {
  if (request.protocol_version() == kProtocolVersion) return absl::OkStatus();
  return WithReason(v1::ERROR_REASON_PROTOCOL_VERSION,
                    absl::FailedPreconditionError(
                        absl::StrCat(request.description(), " speaks protocol version ", request.protocol_version(),
                                     " (ballast ", request.version(), "), want ", kProtocolVersion, " (ballast ",
                                     kVersion, "): run the same release everywhere")));
}

}  // namespace

CoordinatorServiceAdapter::CoordinatorServiceAdapter(Coordinator* coordinator, const AccessGuard* access)
    : coordinator_(coordinator), access_(access) {
  using Self = CoordinatorServiceAdapter;
  const auto index = IndexOf<v1::CoordinatorService>;
  MarkMethodCallback(index("Join"), ParsingHandler(this, &Self::Join));
  MarkMethodCallback(index("Heartbeat"), ParsingHandler(this, &Self::Heartbeat));
  MarkMethodCallback(index("Leave"), ParsingHandler(this, &Self::Leave));
  MarkMethodCallback(index("PlaceTensors"), ParsingHandler(this, &Self::PlaceTensors));
  MarkMethodCallback(index("GetShardMap"), ParsingHandler(this, &Self::GetShardMap));
  MarkMethodCallback(index("AcquireLease"), ParsingHandler(this, &Self::AcquireLease));
  MarkMethodCallback(index("CompleteLease"), ParsingHandler(this, &Self::CompleteLease));
  MarkMethodCallback(index("ReportProgress"), ParsingHandler(this, &Self::ReportProgress));
  MarkMethodCallback(index("GetProgress"), ParsingHandler(this, &Self::GetProgress));
  MarkMethodCallback(index("SaveCheckpoint"), ParsingHandler(this, &Self::SaveCheckpoint));
}

grpc::ServerUnaryReactor* CoordinatorServiceAdapter::AnswerSaved(grpc::CallbackServerContext* context,
                                                                 const absl::Status& status) {
  if (!status.ok()) return Answer(context, status);
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  coordinator_->AwaitSaved([reactor](const absl::Status& saved) { reactor->Finish(ToGrpcStatus(saved)); });
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorServiceAdapter::AnswerHeartbeat(grpc::CallbackServerContext* context,
                                                                     const Membership::Id& member, uint64_t change) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  coordinator_->AwaitSaved(member, change, [reactor](const absl::Status& saved) {
    reactor->Finish(ToGrpcStatus(WithCodeOfPassing(saved)));
  });
  return reactor;
}

grpc::ServerUnaryReactor* CoordinatorServiceAdapter::Join(grpc::CallbackServerContext* context,
                                                          const v1::JoinRequest* request, v1::JoinResponse* response) {
  if (absl::Status access =
          access_->Check(*context, "CoordinatorService/Join", request->job().name(), LeastRoleOf(request->role()));
      !access.ok())
    return Answer(context, access);
  if (absl::Status status = CheckVersion(*request); !status.ok()) return Answer(context, status);
  v1::Member asked;
  asked.set_role(request->role());
  absl::StatusOr<Membership::Id> role = FromProto(asked);
  if (!role.ok()) return Answer(context, role.status());
  if (role->role == MemberRole::kStandby) {
    return Answer(context, absl::InvalidArgumentError("join: got role standby, want server or worker: a server becomes "
                                                      "a standby if its rank is taken"));
  }
  Newcomer newcomer{role->role,
                    std::nullopt,
                    request->address(),
                    request->description(),
                    request->job(),
                    request->train_examples(),
                    request->with_standby(),
                    request->process(),
                    request->control_address()};
  if (request->has_rank()) newcomer.rank = request->rank();
  absl::StatusOr<Membership::Id> id = coordinator_->Join(std::move(newcomer));
  if (!id.ok()) return Answer(context, id.status());
  *response->mutable_member() = ToProto(*id);
  const JobOptions& options = coordinator_->options().job;
  response->set_servers(options.servers);
  response->set_workers(options.workers);
  // The standby of a lost server must learn of the loss soon.
  const bool pair = options.with_standby && id->role != MemberRole::kWorker;
  response->set_heartbeat_interval_ms(absl::ToInt64Milliseconds(options.member_ttl / (pair ? 15 : 5)));
  response->set_member_ttl_ms(absl::ToInt64Milliseconds(options.member_ttl));
  if (id->role != MemberRole::kWorker) return AnswerSaved(context, absl::OkStatus());
  const WorkerControl::Beginning beginning = coordinator_->BeginningOf(*id);
  response->set_steps(beginning.steps);
  if (beginning.resumed_batches.has_value()) response->set_resumed_batches(*beginning.resumed_batches);
  return AnswerSaved(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* CoordinatorServiceAdapter::Heartbeat(grpc::CallbackServerContext* context,
                                                               const v1::HeartbeatRequest* request,
                                                               v1::HeartbeatResponse* response) {
  if (absl::Status access = access_->Check(*context, "CoordinatorService/Heartbeat", request->job(),
                                           LeastRoleOf(request->member().role()));
      !access.ok())
    return Answer(context, access);
  absl::StatusOr<Membership::Id> id = FromProto(request->member());
  if (!id.ok()) return Answer(context, id.status());
  absl::StatusOr<Coordinator::HeartbeatReply> reply =
      coordinator_->Heartbeat(*id, request->checkpoint_part(), {request->standby(), request->server_lost()});
  if (!reply.ok()) return Answer(context, reply.status());
  if (id->role == MemberRole::kServer && request->caused_waits_size() > 0) {
    const absl::Status reported = coordinator_->ReportWaits(reply->promoted.value_or(*id), request->caused_waits());
    if (!reported.ok()) return Answer(context, reported);
  }
  response->set_state(reply->state);
  response->set_reason(reply->reason);
  if (reply->state == v1::JOB_STATE_FAILED) *response->mutable_failure() = reply->failure;
  // The rest is for servers.
  if (id->role == MemberRole::kWorker) return AnswerHeartbeat(context, *id, reply->change);
  for (const Membership::Id& absent : reply->absent) *response->add_absent() = ToProto(absent);
  if (reply->heartbeat_now) response->set_interval_ms(absl::ToInt64Milliseconds(kHastyInterval));
  response->set_capture_checkpoint_id(reply->capture_checkpoint_id);
  if (reply->standby.has_value()) {
    response->mutable_standby()->set_incarnation(reply->standby->id.incarnation);
    response->mutable_standby()->set_address(reply->standby->address);
  }
  if (reply->promoted.has_value()) *response->mutable_promoted() = ToProto(*reply->promoted);
  return AnswerHeartbeat(context, reply->promoted.value_or(*id), reply->change);
}

grpc::ServerUnaryReactor* CoordinatorServiceAdapter::Leave(grpc::CallbackServerContext* context,
                                                           const v1::LeaveRequest* request, v1::LeaveResponse*) {
  if (absl::Status access =
          access_->Check(*context, "CoordinatorService/Leave", request->job(), LeastRoleOf(request->member().role()));
      !access.ok())
    return Answer(context, access);
  absl::StatusOr<Membership::Id> id = FromProto(request->member());
  if (!id.ok()) return Answer(context, id.status());
  return AnswerSaved(context, coordinator_->Leave(*id, request->failure(), request->worker_local()));
}

grpc::ServerUnaryReactor* CoordinatorServiceAdapter::PlaceTensors(grpc::CallbackServerContext* context,
                                                                  const v1::PlaceTensorsRequest* request,
                                                                  v1::PlaceTensorsResponse* response) {
  if (absl::Status access = access_->Check(*context, "CoordinatorService/PlaceTensors", request->job()); !access.ok())
    return Answer(context, access);
  const std::vector<v1::TensorSpec> specs(request->tensors().begin(), request->tensors().end());
  const std::vector<v1::TableSpec> tables(request->tables().begin(), request->tables().end());
  absl::StatusOr<ShardMap> map = coordinator_->PlaceTensors(request->job(), specs, tables);
  if (!map.ok()) return Answer(context, map.status());
  *response->mutable_map() = map->ToProto();
  return AnswerSaved(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* CoordinatorServiceAdapter::GetShardMap(grpc::CallbackServerContext* context,
                                                                 const v1::GetShardMapRequest* request,
                                                                 v1::GetShardMapResponse* response) {
  if (absl::Status access = access_->Check(*context, "CoordinatorService/GetShardMap", request->job()); !access.ok())
    return Answer(context, access);
  const absl::Duration wait = absl::Milliseconds(request->wait_ms());
  if (wait > kMaxMapWait) {
    return Answer(context,
                  absl::InvalidArgumentError(absl::StrCat("wait_ms: got ", request->wait_ms(), ", want at most ",
                                                          absl::ToInt64Milliseconds(kMaxMapWait))));
  }
  auto* const call = new WaitingCall(coordinator_);
  const std::shared_ptr<CancellableWait> waiting = call->wait();
  waiting->Began(coordinator_->AwaitShardMap(wait > absl::ZeroDuration() ? request->newer_than() : 0, wait,
                                             context->peer(), [=](const absl::StatusOr<ShardMap>& map) {
                                               if (map.ok()) *response->mutable_map() = map->ToProto();
                                               call->Finish(ToGrpcStatus(WithRetryDelay(map.status(), *context)));
                                             }));
  return call;
}

grpc::ServerUnaryReactor* CoordinatorServiceAdapter::AcquireLease(grpc::CallbackServerContext* context,
                                                                  const v1::AcquireLeaseRequest* request,
                                                                  v1::AcquireLeaseResponse* response) {
  if (absl::Status access = access_->Check(*context, "CoordinatorService/AcquireLease", request->job()); !access.ok())
    return Answer(context, access);
  absl::StatusOr<Membership::Id> id = FromProto(request->member());
  if (!id.ok()) return Answer(context, id.status());
  absl::StatusOr<absl::Duration> wait = DecodeWait(request->wait_ms());
  if (!wait.ok()) return Answer(context, wait.status());
  auto* const call = new WaitingCall(coordinator_);
  const std::shared_ptr<CancellableWait> waiting = call->wait();
  waiting->Began(coordinator_->AcquireLease(
      *id, {request->held_leases().begin(), request->held_leases().end()}, *wait,
      [=](const absl::StatusOr<Coordinator::Grant>& grant) {
        if (grant.ok()) {
          if (grant->lease.has_value()) *response->mutable_lease() = ToProto(*grant->lease);
          if (grant->stream_position.has_value()) {
            *response->mutable_stream_position() = ToProto(*grant->stream_position);
          }
          response->set_max_stream_examples(grant->max_stream_examples);
          response->set_finished(grant->finished);
          response->set_epochs_done(grant->epochs_done);
          response->set_waiting_for(grant->waiting_for);
        }
        call->Finish(ToGrpcStatus(grant.status()));
      },
      request->epochs_done(),
      request->has_found() ? std::optional<StreamSpan>(FromProto(request->found())) : std::nullopt));
  return call;
}

grpc::ServerUnaryReactor* CoordinatorServiceAdapter::CompleteLease(grpc::CallbackServerContext* context,
                                                                   const v1::CompleteLeaseRequest* request,
                                                                   v1::CompleteLeaseResponse*) {
  if (absl::Status access = access_->Check(*context, "CoordinatorService/CompleteLease", request->job()); !access.ok())
    return Answer(context, access);
  absl::StatusOr<Membership::Id> id = FromProto(request->member());
  if (!id.ok()) return Answer(context, id.status());
  return AnswerSaved(context,
                     coordinator_->CompleteLease(*id, request->lease_id(), request->steps(), request->batches()));
}

grpc::ServerUnaryReactor* CoordinatorServiceAdapter::ReportProgress(grpc::CallbackServerContext* context,
                                                                    const v1::ReportProgressRequest* request,
                                                                    v1::ReportProgressResponse* response) {
  if (absl::Status access = access_->Check(*context, "CoordinatorService/ReportProgress", request->job()); !access.ok())
    return Answer(context, access);
  absl::StatusOr<Membership::Id> id = FromProto(request->member());
  if (!id.ok()) return Answer(context, id.status());
  absl::StatusOr<v1::JobProgress> progress = coordinator_->ReportProgress(
      *id, request->progress(), request->has_evaluation() ? &request->evaluation() : nullptr,
      request->has_completed_lease() ? &request->completed_lease() : nullptr);
  if (!progress.ok()) return Answer(context, progress.status());
  response->set_lease_completed(request->has_completed_lease());
  *response->mutable_progress() = *std::move(progress);
  return AnswerSaved(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* CoordinatorServiceAdapter::GetProgress(grpc::CallbackServerContext* context,
                                                                 const v1::GetProgressRequest* request,
                                                                 v1::GetProgressResponse* response) {
  if (absl::Status access = access_->Check(*context, "CoordinatorService/GetProgress", request->job()); !access.ok())
    return Answer(context, access);
  *response = coordinator_->Describe();
  return Answer(context, absl::OkStatus());
}

grpc::ServerUnaryReactor* CoordinatorServiceAdapter::SaveCheckpoint(grpc::CallbackServerContext* context,
                                                                    const v1::SaveCheckpointRequest* request,
                                                                    v1::SaveCheckpointResponse* response) {
  if (absl::Status access =
          access_->Check(*context, "CoordinatorService/SaveCheckpoint", request->job(), AccessRole::kAdmin);
      !access.ok())
    return Answer(context, access);
  *response = coordinator_->SaveCheckpoint(*request);
  return Answer(context, absl::OkStatus());
}

}  // namespace ballast

// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/parameter_service.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/job/kind_names.h"
#include "common/job/limits.h"
#include "common/program/this_process.h"
#include "common/rpc/grpc_status.h"
#include "common/status/error_reason.h"
#include "common/wire/limits.h"
#include "common/wire/payload_message.h"
#include "server/rpc/parsed_request.h"
#include "server/rpc/region_registry.h"
#include "server/rpc/unary_reply.h"

namespace ballast {

ParameterServiceAdapter::ParameterServiceAdapter(uint32_t rank, ParameterShard* shard, DataPlane* data_plane,
                                                 const AccessGuard* access, const ServingGate* serving,
                                                 RowWatchCalls* watches, const Executors& executors)
    : rank_(rank),
      shard_(shard),
      data_plane_(data_plane),
      access_(access),
      serving_(serving),
      watches_(watches),
      executors_(executors) {
  using Self = ParameterServiceAdapter;
  const auto index = IndexOf<v1::ParameterService>;
  MarkMethodCallback(index("DeclareTensors"), ParsingHandler(this, &Self::DeclareTensors));
  MarkMethodCallback(index("Pause"), ParsingHandler(this, &Self::Pause));
  MarkMethodCallback(index("ReportVersions"), ParsingHandler(this, &Self::ReportVersions));
  MarkMethodCallback(index("InspectRows"), ParsingHandler(this, &Self::InspectRows));
  MarkMethodCallback(index("ShareMemory"), ParsingHandler(this, &Self::ShareMemory));
  MarkMethodCallback(index("OpenDataStream"), ParsingHandler(this, &Self::OpenDataStream));
  MarkMethodCallback(index("GetStatus"), ParsingHandler(this, &Self::GetStatus));
}

ShardStatusService::ShardStatusService(ParameterServiceAdapter* adapter) : adapter_(adapter) {
  MarkMethodCallback(IndexOf<v1::ParameterService>("GetStatus"), ParsingHandler(this, &ShardStatusService::GetStatus));
}

absl::Status ParameterServiceAdapter::Check(const grpc::CallbackServerContext& context, absl::string_view method,
                                            const std::string& job) const {
  if (absl::Status access = access_->Check(context, method, job); !access.ok()) return access;
  const absl::Status serving = serving_->Check();
  return serving.ok() ? serving : Annotate(serving, absl::StrCat("shard ", rank_));
}

grpc::ServerUnaryReactor* ParameterServiceAdapter::AnswerLater(grpc::CallbackServerContext* context, Executor* executor,
                                                               const google::protobuf::Message& request,
                                                               absl::AnyInvocable<absl::Status()> change) {
  absl::StatusOr<ByteBudget::Reservation> reserved =
      data_plane_->Reserve(std::max<uint64_t>(request.SpaceUsedLong(), ByteBudget::kCallBytes));
  if (!reserved.ok()) return Answer(context, reserved.status());
  // Shared by the copies of the callback that the journal keeps.
  auto held = std::make_shared<ByteBudget::Reservation>(*std::move(reserved));
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const absl::Status taken =
      executor->Submit([this, context, reactor, held = std::move(held), change = std::move(change)]() mutable {
        // A caller that cancelled will repeat the request if it still needs it.
        const absl::Status status = context->IsCancelled() ? absl::CancelledError("cancelled by the caller") : change();
        if (!status.ok()) return reactor->Finish(ToGrpcStatus(status));
        // The client does not repeat the request to a shard that has lost the change.
        shard_->AwaitSynced(
            [reactor, held = std::move(held)](const absl::Status& durable) { reactor->Finish(ToGrpcStatus(durable)); });
      });
  if (!taken.ok()) reactor->Finish(ToGrpcStatus(Annotate(taken, absl::StrCat("shard ", rank_))));
  return reactor;
}

grpc::ServerUnaryReactor* ParameterServiceAdapter::DeclareTensors(grpc::CallbackServerContext* context,
                                                                  const v1::DeclareTensorsRequest* request,
                                                                  v1::DeclareTensorsResponse* response) {
  if (absl::Status may = Check(*context, "ParameterService/DeclareTensors", request->job()); !may.ok())
    return Answer(context, may);
  if (request->protocol_version() != 0 && request->protocol_version() != kProtocolVersion) {
    return Answer(context, WithReason(v1::ERROR_REASON_PROTOCOL_VERSION,
                                      absl::FailedPreconditionError(absl::StrCat(
                                          "shard ", rank_, ": got protocol version ", request->protocol_version(),
                                          ", want ", kProtocolVersion, " (ballast ", kVersion, ")"))));
  }
  auto declare = [this, request, response]() -> absl::Status {
    std::vector<OwnedTensor> tensors;
    tensors.reserve(request->tensors_size());
    for (const v1::TensorDeclaration& declaration : request->tensors()) {
      tensors.push_back({declaration.spec(), {declaration.slices().begin(), declaration.slices().end()}});
    }
    std::vector<OwnedTable> tables;
    for (const v1::PlacedTable& table : request->tables()) {
      tables.push_back({table.spec(), {table.spans().begin(), table.spans().end()}});
    }
    const auto owned = shard_->Declare({request->job(), request->policy(), request->workers(), request->durability()},
                                       std::move(tensors), tables);
    if (!owned.ok()) return owned.status();
    for (const OwnedTensor& tensor : *owned) {
      v1::DeclareTensorsResponse::Owned* to = response->add_tensors();
      to->set_tensor_id(tensor.spec.id());
      to->mutable_slices()->Add(tensor.slices.begin(), tensor.slices.end());
    }
    return absl::OkStatus();
  };
  return AnswerLater(context, executors_.declarations, *request, std::move(declare));
}

grpc::ServerUnaryReactor* ParameterServiceAdapter::Pause(grpc::CallbackServerContext* context,
                                                         const v1::PauseRequest* request, v1::PauseResponse*) {
  if (absl::Status may = Check(*context, "ParameterService/Pause", request->job()); !may.ok())
    return Answer(context, may);
  return AnswerLater(context, executors_.changes, *request, [this, request] {
    return shard_->Pause(request->job(), request->worker(), request->incarnation());
  });
}

grpc::ServerUnaryReactor* ParameterServiceAdapter::ReportVersions(grpc::CallbackServerContext* context,
                                                                  const v1::ReportVersionsRequest* request,
                                                                  v1::ReportVersionsResponse* response) {
  if (absl::Status may = Check(*context, "ParameterService/ReportVersions", request->job()); !may.ok())
    return Answer(context, may);
  if (request->slices_size() > static_cast<int>(kMaxSlicesPerMessage)) {
    const absl::Status status = absl::InvalidArgumentError(absl::StrCat(
        "shard ", rank_, ": got a report of ", request->slices_size(), " slices, want at most ", kMaxSlicesPerMessage));
    return Answer(context, WithReason(v1::ERROR_REASON_INVALID_REQUEST, status));
  }
  return AnswerLater(context, executors_.changes, *request, [this, request, response]() -> absl::Status {
    std::vector<SeenSlice> seen;
    seen.reserve(request->slices_size());
    for (const v1::ReportVersionsRequest::Slice& slice : request->slices()) {
      seen.push_back({{slice.tensor_id(), slice.slice_index()}, slice.version(), slice.finished_steps()});
    }
    const absl::StatusOr<uint32_t> raised = shard_->ReportVersions(
        request->job(), request->worker(), request->incarnation(), seen, {0, request->ended_steps()});
    if (raised.ok()) response->set_raised(*raised);
    return raised.status();
  });
}

grpc::ServerUnaryReactor* ParameterServiceAdapter::InspectRows(grpc::CallbackServerContext* context,
                                                               const v1::InspectRowsRequest* request,
                                                               v1::InspectRowsResponse* response) {
  if (absl::Status may = Check(*context, "ParameterService/InspectRows", request->job()); !may.ok())
    return Answer(context, may);
  if (absl::Status status = CheckLimits(*request, ""); !status.ok()) {
    return Answer(context,
                  WithReason(v1::ERROR_REASON_INVALID_REQUEST, Annotate(status, absl::StrCat("shard ", rank_))));
  }
  return AnswerLater(context, executors_.declarations, *request, [this, request, response] {
    absl::StatusOr<Table::Inspected> inspected =
        shard_->InspectRows(request->job(), request->table_id(), request->first(), request->count(), request->top());
    if (!inspected.ok()) return inspected.status();
    *response->mutable_statistics() = std::move(inspected->statistics);
    response->mutable_top()->Add(inspected->top.begin(), inspected->top.end());
    response->set_next(inspected->next);
    return absl::OkStatus();
  });
}

grpc::ServerWriteReactor<v1::ShareMemoryResponse>* ParameterServiceAdapter::ShareMemory(
    grpc::CallbackServerContext* context, const v1::ShareMemoryRequest* request) {
  const absl::Status may = Check(*context, "ParameterService/ShareMemory", request->job());
  const ServeRegion serve = [&](std::shared_ptr<SharedRegion> region, std::unique_ptr<SharedHeapReader> heap) {
    return data_plane_->ServeSlots(std::move(region), std::move(heap), std::string(access_->TokenFor(*context)),
                                   context->peer());
  };
  return ballast::ShareMemory(may, *request, *shard_, rank_, data_plane_->regions(), serve);
}

grpc::ServerUnaryReactor* ParameterServiceAdapter::OpenDataStream(grpc::CallbackServerContext* context,
                                                                  const v1::OpenDataStreamRequest* request,
                                                                  v1::OpenDataStreamResponse* response) {
  if (absl::Status may = Check(*context, "ParameterService/OpenDataStream", request->job()); !may.ok()) {
    return Answer(context, may);
  }
  if (shard_->job_name().empty()) {
    return Answer(context,
                  WithReason(v1::ERROR_REASON_NO_JOB, absl::FailedPreconditionError(absl::StrCat(
                                                          "shard ", rank_, ": no worker has declared tensors"))));
  }
  absl::StatusOr<v1::OpenDataStreamResponse> offer =
      data_plane_->OfferStream(std::string(access_->TokenFor(*context)), context->peer());
  if (offer.ok()) *response = *std::move(offer);
  return Answer(context, offer.status());
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* ParameterServiceAdapter::WatchRows(grpc::CallbackServerContext* context,
                                                                               const grpc::ByteBuffer* request) {
  absl::StatusOr<v1::WatchRowsRequest> watch =
      DecodeMessage<v1::WatchRowsRequest>(BytesOf(*request), kMaxElementsPerMessage);
  if (watch.ok()) {
    if (absl::Status may = Check(*context, "ParameterService/WatchRows", watch->job()); !may.ok()) watch = may;
  }
  return watches_->Begin(context, std::move(watch));
}

grpc::ServerUnaryReactor* ParameterServiceAdapter::GetStatus(grpc::CallbackServerContext* context,
                                                             const v1::GetStatusRequest* request,
                                                             v1::GetStatusResponse* response) {
  if (absl::Status access = access_->Check(*context, "ParameterService/GetStatus", request->job()); !access.ok())
    return Answer(context, access);
  *response = Describe();
  return Answer(context, absl::OkStatus());
}

namespace {

void DescribeMemory(const ShardStatus& status, const DataPlane::Traffic& traffic, v1::GetStatusResponse::Memory& to) {
  uint64_t tables = 0, buffered = 0;
  for (const ShardStatus::Table& table : status.tables) {
    tables += table.bytes;
    buffered += table.buffered_bytes;
  }
  to.set_weights(status.memory.weights);
  to.set_slots(status.state_bytes - tables - status.memory.weights);
  to.set_policy(status.memory.policies + buffered);
  to.set_tables(tables);
  to.set_free_buffers(traffic.free_buffer_bytes);
  to.set_waits(status.wait_bytes);
  to.set_state_limit(status.state_bytes_limit);
  to.set_waits_limit(status.wait_bytes_limit);
}

void DescribeLog(const LogStatus& log, v1::GetStatusResponse::Log& to) {
  to.set_bytes(log.bytes);
  to.set_unsynced_bytes(log.unsynced_bytes);
  *to.mutable_sync_microseconds() = log.sync_microseconds;
  if (log.snapshot == absl::InfinitePast()) return;
  to.set_snapshot_unix_seconds(absl::ToDoubleSeconds(log.snapshot - absl::UnixEpoch()));
  to.set_snapshot_seconds(absl::ToDoubleSeconds(log.snapshot_took));
}

}  // namespace

v1::GetStatusResponse ParameterServiceAdapter::Describe() const {
  v1::GetStatusResponse response;
  const ShardStatus status = shard_->status();
  const DataPlane::Traffic traffic = data_plane_->traffic();
  response.set_shard(rank_);
  response.set_job(status.job.name);
  response.set_policy(KindName(status.job.policy));
  response.set_workers(status.job.workers);
  response.set_tensors(status.tensors);
  response.set_slices(status.slices);
  response.set_state_bytes(status.state_bytes);
  response.set_pushes(status.pushes);
  response.set_pulls(status.pulls);
  response.set_updates(status.updates);
  response.set_duplicates(status.duplicates);
  response.set_dropped(status.dropped);
  response.set_waiting(status.waiting);
  if (status.longest_wait.has_value()) {
    response.mutable_longest_wait()->set_seconds(absl::ToDoubleSeconds(status.longest_wait->waited));
    response.mutable_longest_wait()->set_reason(status.longest_wait->reason);
  }
  for (v1::CausedWait& wait : shard_->caused_waits()) *response.add_caused_waits() = std::move(wait);
  response.set_max_staleness(status.max_staleness);
  response.set_uptime_seconds(status.uptime_seconds);
  response.set_version(kVersion);
  response.set_draining(status.draining);
  *response.mutable_staleness() = status.staleness;
  *response.mutable_wait_microseconds() = status.wait_microseconds;
  response.set_push_bytes(traffic.push_bytes);
  response.set_pull_bytes(traffic.pull_bytes);
  response.set_bytes_in_flight(traffic.bytes_in_flight);
  response.set_bytes_in_flight_limit(traffic.bytes_in_flight_limit);
  response.set_refused(traffic.refused);
  response.set_shared_regions(traffic.shared_regions);
  response.set_shared_calls(traffic.shared_calls);
  response.set_data_streams(traffic.data_streams);
  response.set_stream_calls(traffic.stream_calls);
  data_plane_->Describe(response);
  DescribeMemory(status, traffic, *response.mutable_memory());
  if (status.log.has_value()) DescribeLog(*status.log, *response.mutable_log());
  response.set_old_incarnation(status.old_incarnation);
  response.set_apply_seconds(absl::ToDoubleSeconds(status.applying));
  response.set_lock_wait_seconds(absl::ToDoubleSeconds(status.waited_for_locks));
  response.set_applied_bytes(status.applied_bytes);
  for (size_t rank = 0; rank < status.workers_pushes.size(); ++rank) {
    v1::GetStatusResponse::WorkerPushes* to = response.add_worker_pushes();
    to->set_worker(rank);
    to->set_incarnation(status.workers_pushes[rank].incarnation);
    to->set_highest_sequence(status.workers_pushes[rank].highest);
    to->set_accepted(status.workers_pushes[rank].accepted);
    to->set_accepted_of_incarnation(status.workers_pushes[rank].accepted_of_incarnation);
  }
  for (const ShardStatus::Table& table : status.tables) {
    v1::GetStatusResponse::Table* to = response.add_tables();
    to->set_id(table.id);
    to->set_name(table.name);
    to->set_rows(table.rows);
    to->set_bytes(table.bytes);
    to->set_clock(table.clock);
    *to->mutable_evicted() = table.evicted;
    to->set_waiting(table.waiting);
    to->set_not_admitted(table.not_admitted);
  }
  response.set_durability(status.job.durability.mode());
  response.set_snapshots(status.snapshots);
  response.set_snapshot_failures(status.snapshot_failures);
  if (status.recovery.has_value()) {
    v1::GetStatusResponse::Recovery* to = response.mutable_recovery();
    to->set_records(status.recovery->records);
    to->set_refused_records(status.recovery->refused_records);
    to->set_cut_bytes(status.recovery->cut_bytes);
    to->set_seconds(status.recovery->seconds);
    to->set_lost_updates(status.lost_updates);
  }
  return response;
}

}  // namespace ballast

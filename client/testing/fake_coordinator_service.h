// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ballast/v1/coordinator_service.grpc.pb.h"
#include "common/rpc/grpc_status.h"
#include "common/tensors/shard_map.h"

namespace ballast {

// A fake coordinator: places tensors on the given shards, accepts any member, and returns the responses that the test
// sets. Thread safety: all methods may be called from any thread.
class FakeCoordinatorService : public v1::CoordinatorService::Service {
 public:
  explicit FakeCoordinatorService(std::vector<std::string> shards = {}) : map_(std::move(shards)) {}
  ~FakeCoordinatorService() override {
    SetBusy(false);
    HandOutLeases();
    FailMaps(grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone"));
  }

  void SetHeartbeat(grpc::Status status, v1::JobState state, std::string reason) {
    absl::MutexLock lock(&mutex_);
    heartbeat_status_ = std::move(status);
    heartbeat_.set_state(state);
    heartbeat_.set_reason(std::move(reason));
  }
  // While busy, the fake does not respond to heartbeats. Resets their count.
  void SetBusy(bool busy) {
    absl::MutexLock lock(&mutex_);
    busy_ = busy;
    heartbeats_ = 0;
  }
  // Blocks for at most 1 min until that many heartbeats have come since SetBusy.
  bool AwaitHeartbeats(int count) { return Await(&FakeCoordinatorService::heartbeats_, count); }
  // Blocks for at most 1 min until that many members have joined.
  bool AwaitJoins(int count) { return Await(&FakeCoordinatorService::joins_, count); }
  // Before this call, AcquireLease blocks for the requested wait and returns nothing.
  void HandOutLeases() {
    absl::MutexLock lock(&mutex_);
    leases_ = true;
  }
  // Blocks for at most 1 min until a call waits for a lease.
  bool AwaitLeaseWait() { return Await(&FakeCoordinatorService::lease_waits_, 1); }

  // Changes the shard's address in the map, and the map's epoch.
  void MoveShard(int rank, const std::string& address) {
    absl::MutexLock lock(&mutex_);
    v1::ShardMap map = map_.ToProto();
    map.set_epoch(map.epoch() + 1);
    map.set_shards(rank, address);
    map_ = *ShardMap::FromProto(map);
  }
  // Changes the address of the server's control port in the map.
  void MoveControl(int rank, const std::string& address) {
    absl::MutexLock lock(&mutex_);
    map_.MoveControl(rank, address);
  }
  // Fails later and waiting calls of GetShardMap.
  void FailMaps(grpc::Status status) {
    absl::MutexLock lock(&mutex_);
    map_status_ = std::move(status);
  }
  // Blocks for at most 1 min until GetShardMap was called that often.
  bool AwaitMapCalls(int count) { return Await(&FakeCoordinatorService::map_calls_, count); }

  // The leases that the last AcquireLease named.
  std::vector<uint64_t> held_leases() const { return Get(&FakeCoordinatorService::held_leases_); }

  int reports() const { return Get(&FakeCoordinatorService::reports_); }
  v1::ReportProgressRequest last_report() const { return Get(&FakeCoordinatorService::last_report_); }
  // Calls of CompleteLease.
  int completions() const { return Get(&FakeCoordinatorService::completions_); }
  // From now on, it completes the lease of a report, as coordinators do since they know that field.
  void CompleteWithReports() {
    absl::MutexLock lock(&mutex_);
    completes_with_reports_ = true;
  }
  v1::JoinRequest last_join() const { return Get(&FakeCoordinatorService::last_join_); }
  std::vector<v1::LeaveRequest> leaves() const { return Get(&FakeCoordinatorService::leaves_); }

  grpc::Status Join(grpc::ServerContext*, const v1::JoinRequest* request, v1::JoinResponse* response) override {
    absl::MutexLock lock(&mutex_);
    last_join_ = *request;
    ++joins_;
    response->mutable_member()->set_role(request->role());
    response->mutable_member()->set_rank(3);
    response->mutable_member()->set_incarnation(7);
    response->set_heartbeat_interval_ms(5);
    response->set_member_ttl_ms(200);
    return grpc::Status::OK;
  }
  grpc::Status Heartbeat(grpc::ServerContext*, const v1::HeartbeatRequest*, v1::HeartbeatResponse* response) override {
    absl::MutexLock lock(&mutex_);
    ++heartbeats_;
    const auto answers = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !busy_; };
    mutex_.Await(absl::Condition(&answers));
    *response = heartbeat_;
    return heartbeat_status_;
  }
  grpc::Status Leave(grpc::ServerContext*, const v1::LeaveRequest* request, v1::LeaveResponse*) override {
    absl::MutexLock lock(&mutex_);
    leaves_.push_back(*request);
    return grpc::Status::OK;
  }
  grpc::Status PlaceTensors(grpc::ServerContext*, const v1::PlaceTensorsRequest* request,
                            v1::PlaceTensorsResponse* response) override {
    absl::MutexLock lock(&mutex_);
    const std::vector<v1::TensorSpec> specs(request->tensors().begin(), request->tensors().end());
    const std::vector<v1::TableSpec> tables(request->tables().begin(), request->tables().end());
    if (absl::Status status = map_.Place(specs, tables); !status.ok()) return ToGrpcStatus(status);
    *response->mutable_map() = map_.ToProto();
    return grpc::Status::OK;
  }
  grpc::Status GetShardMap(grpc::ServerContext* context, const v1::GetShardMapRequest* request,
                           v1::GetShardMapResponse* response) override {
    absl::MutexLock lock(&mutex_);
    ++map_calls_;
    const auto answerable = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return map_.epoch() > request->newer_than() || !map_status_.ok();
    };
    const absl::Time deadline = absl::Now() + absl::Milliseconds(request->wait_ms());
    // Wait in short steps, to notice when the call is cancelled.
    while (absl::Now() < deadline && !context->IsCancelled()) {
      if (mutex_.AwaitWithTimeout(absl::Condition(&answerable), absl::Milliseconds(10))) break;
    }
    if (!map_status_.ok()) return map_status_;
    *response->mutable_map() = map_.ToProto();
    return grpc::Status::OK;
  }
  grpc::Status AcquireLease(grpc::ServerContext*, const v1::AcquireLeaseRequest* request,
                            v1::AcquireLeaseResponse* response) override {
    absl::MutexLock lock(&mutex_);
    ++lease_waits_;
    held_leases_.assign(request->held_leases().begin(), request->held_leases().end());
    mutex_.AwaitWithTimeout(absl::Condition(&leases_), absl::Milliseconds(request->wait_ms()));
    if (!leases_) {
      response->set_waiting_for("worker 1");
      return grpc::Status::OK;
    }
    response->mutable_lease()->set_id(11);
    response->mutable_lease()->set_end(100);
    return grpc::Status::OK;
  }
  grpc::Status CompleteLease(grpc::ServerContext*, const v1::CompleteLeaseRequest* request,
                             v1::CompleteLeaseResponse*) override {
    absl::MutexLock lock(&mutex_);
    ++completions_;
    if (request->lease_id() == 11 && request->member().rank() == 3) return grpc::Status::OK;
    return grpc::Status(grpc::StatusCode::NOT_FOUND, "no such lease");
  }
  grpc::Status ReportProgress(grpc::ServerContext*, const v1::ReportProgressRequest* request,
                              v1::ReportProgressResponse* response) override {
    absl::MutexLock lock(&mutex_);
    ++reports_;
    last_report_ = *request;
    response->set_lease_completed(completes_with_reports_ && request->has_completed_lease());
    response->mutable_progress()->set_step(request->progress().step());
    *response->mutable_progress()->mutable_last_evaluation() = request->evaluation();
    return grpc::Status::OK;
  }
  grpc::Status GetProgress(grpc::ServerContext*, const v1::GetProgressRequest*,
                           v1::GetProgressResponse* response) override {
    response->set_servers(2);
    return grpc::Status::OK;
  }

 private:
  template <typename Value>
  Value Get(Value FakeCoordinatorService::*field) const {
    absl::MutexLock lock(&mutex_);
    return this->*field;
  }
  bool Await(int FakeCoordinatorService::*count, int value) {
    absl::MutexLock lock(&mutex_);
    const auto reached = [&] { return this->*count >= value; };
    return mutex_.AwaitWithTimeout(absl::Condition(&reached), absl::Minutes(1));
  }

  mutable absl::Mutex mutex_;
  ShardMap map_ ABSL_GUARDED_BY(mutex_);
  grpc::Status map_status_ ABSL_GUARDED_BY(mutex_);
  int map_calls_ ABSL_GUARDED_BY(mutex_) = 0;
  grpc::Status heartbeat_status_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  int heartbeats_ ABSL_GUARDED_BY(mutex_) = 0;
  v1::HeartbeatResponse heartbeat_ ABSL_GUARDED_BY(mutex_);
  bool leases_ ABSL_GUARDED_BY(mutex_) = false;
  int lease_waits_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<uint64_t> held_leases_ ABSL_GUARDED_BY(mutex_);
  int reports_ ABSL_GUARDED_BY(mutex_) = 0;
  v1::ReportProgressRequest last_report_ ABSL_GUARDED_BY(mutex_);
  int completions_ ABSL_GUARDED_BY(mutex_) = 0;
  bool completes_with_reports_ ABSL_GUARDED_BY(mutex_) = false;
  int joins_ ABSL_GUARDED_BY(mutex_) = 0;
  v1::JoinRequest last_join_ ABSL_GUARDED_BY(mutex_);
  std::vector<v1::LeaveRequest> leaves_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "ballast/v1/coordinator_service.grpc.pb.h"
#include "client/call_group.h"
#include "client/job_condition_tracker.h"
#include "common/rpc/credentials.h"
#include "common/rpc/member_loop.h"
#include "common/rpc/renewed_channel.h"
#include "common/tensors/shard_map.h"

namespace ballast {

// Owns the connection to a job's coordinator and a member's heartbeats; has a blocking method for each call of the
// coordinator service. Does not know the contents of tensors. Retryable calls are retried for 10 s, or for the time
// that the job's durability gives a coordinator to return, if longer; the final error names the coordinator's address,
// the call and the elapsed time. The destructor ends all calls, without leaving. Thread safety: all methods may be
// called from any thread, except that Join, StartHeartbeats, Leave and the destructor must be called from one thread.
class CoordinatorLink {
 public:
  // Blocks until the coordinator responds; UNAVAILABLE or DEADLINE_EXCEEDED after `timeout`. INVALID_ARGUMENT if the
  // credentials do not suit the address, UNAUTHENTICATED or PERMISSION_DENIED if the server does not accept them,
  // FAILED_PRECONDITION if the server holds another job. Each request names `job`; empty: the coordinator's only job.
  static absl::StatusOr<std::unique_ptr<CoordinatorLink>> Connect(const std::string& address, absl::Duration timeout,
                                                                  const Credentials& credentials = {},
                                                                  const std::string& job = "");
  // Fills in the versions. Later calls are made as the member in the response. While another member has the rank,
  // retries for up to `timeout`, because a dead member is soon declared lost.
  absl::StatusOr<v1::JoinResponse> Join(v1::JoinRequest request, absl::Duration timeout);

  // Sends heartbeats in the background at the interval from JoinResponse. Calls `on_change` from that thread when the
  // condition changes; it may be empty and must not call Leave. The condition also becomes FAILED if the coordinator
  // declares the member lost, or sends no response for too long: for the member's time to live if it is unreachable,
  // for 60 s if its connection stands (it is busy), or for the return time set by the job's durability, if longer.
  void StartHeartbeats(std::function<void(const JobCondition&)> on_change);

  // Returns the condition as of the last heartbeat.
  JobCondition condition() const;

  // Ends the heartbeats and the membership. An empty `failure` means success; with `worker_local` the failure is the
  // member's alone, not the job's. Works after CancelCalls.
  absl::Status Leave(const std::string& failure, bool worker_local = false);

  // Blocks for up to `timeout` until there is a lease, the data is `finished`, or the job awaits the evaluation of
  // more epochs than before; call it from one thread at a time. A
  // lease whose response was lost is returned again. DEADLINE_EXCEEDED names the members that it waited for. In a job
  // with a stream, returns a position of the stream instead of waiting for a lease; `found` as in AcquireLeaseRequest.
  absl::StatusOr<v1::AcquireLeaseResponse> AcquireLease(absl::Duration timeout,
                                                        const std::optional<v1::StreamSpan>& found = std::nullopt);
  // Returns true if CancelCalls was called, or is called within `timeout`.
  bool AwaitCancel(absl::Duration timeout) { return calls_.WaitForShutdown(timeout); }
  // AcquireLeaseResponse.epochs_done of the last response that had any; 0: none.
  uint32_t epochs_done() const;
  absl::Status CompleteLease(uint64_t lease_id, uint64_t steps, uint64_t batches);

  // With `completed`, then completes that lease, in the same call unless the coordinator is of an older version.
  absl::StatusOr<v1::JobProgress> ReportProgress(
      v1::WorkerProgress progress, std::optional<v1::Evaluation> evaluation,
      const std::optional<v1::ReportProgressRequest::CompletedLease>& completed = std::nullopt);
  absl::StatusOr<v1::GetProgressResponse> GetProgress();

  // Blocks for up to `timeout` until all servers have joined.
  absl::StatusOr<ShardMap> PlaceTensors(const std::string& job, absl::Span<const v1::TensorSpec> specs,
                                        absl::Span<const v1::TableSpec> tables, absl::Duration timeout);
  absl::StatusOr<ShardMap> GetShardMap();
  // Returns the map once its epoch is above `newer_than`, or the current map after `wait`, at most 1 min. Not retried,
  // so it fails soon after the coordinator is lost.
  absl::StatusOr<ShardMap> AwaitShardMap(uint64_t newer_than, absl::Duration wait);

  // Directs later calls to the coordinator's control port in the map, until that port becomes unreachable. Waits up to
  // 2 s for a connection; without one, calls keep their present target. PlaceTensors follows its map.
  void Follow(const ShardMap& map);

  // Ends calls in flight and all later ones with CANCELLED and the reason; heartbeats continue.
  void CancelCalls(const std::string& reason);

 private:
  template <typename Request, typename Response>
  using Method = void (v1::CoordinatorService::StubInterface::async_interface::*)(grpc::ClientContext*, const Request*,
                                                                                  Response*,
                                                                                  std::function<void(grpc::Status)>);
  // Forgets a lease that is completed.
  void Release(uint64_t lease_id) ABSL_LOCKS_EXCLUDED(mutex_);

  CoordinatorLink(const std::string& address, const Credentials& credentials, const std::string& job);
  // Returns "coordinator at host:port".
  std::string name() const;
  // Makes later calls use `address_`, through another channel if this one has found no server.
  void ReturnHome();
  std::shared_ptr<v1::CoordinatorService::Stub> stub() const;
  template <typename Response, typename Request>
  absl::StatusOr<Response> Call(CallGroup* group, CallOptions options, Request request,
                                Method<Request, Response> method);
  // Options with one timeout for attempts and retries.
  CallOptions Within(const char* call, absl::Duration timeout) const;
  // Options with retries for as long as a lost coordinator may take to return. The server may take `wait` longer.
  CallOptions Options(const char* call, absl::Duration wait = absl::ZeroDuration()) const;
  v1::Member member() const;
  // Sends a heartbeat until the coordinator responds or is lost; a step of the loop.
  std::optional<absl::Duration> Beat(const std::function<void(const JobCondition&)>& on_change);

  const std::string address_;
  const Credentials credentials_;
  const std::string job_;
  // To `address_`.
  RenewedChannel home_channel_;

  mutable absl::Mutex mutex_;
  // Stub for `address_`. Shared with calls in flight, which outlive a change of the port.
  std::shared_ptr<v1::CoordinatorService::Stub> home_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<v1::CoordinatorService::Stub> control_ ABSL_GUARDED_BY(mutex_);
  // The control port's address, even if it was never reached; empty after it or `address_` became unreachable.
  std::string control_address_ ABSL_GUARDED_BY(mutex_);
  v1::JoinResponse joined_ ABSL_GUARDED_BY(mutex_);
  JobConditionTracker tracker_ ABSL_GUARDED_BY(mutex_);
  // Leases that are acquired and not completed.
  std::set<uint64_t> held_ ABSL_GUARDED_BY(mutex_);
  uint32_t epochs_done_ ABSL_GUARDED_BY(mutex_) = 0;

  // Separate groups, because they shut down at different times.
  CallGroup calls_;
  CallGroup leaving_;
  // Declared last, because its thread uses the other fields.
  MemberLoop loop_;
};

}  // namespace ballast

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "ballast/v1/coordinator_service.grpc.pb.h"
#include "client/call_group.h"
#include "common/rpc/credentials.h"
#include "common/tensors/shard_map.h"

namespace ballast {

// What became of the job, and why.
struct JobCondition {
  v1::JobState state = v1::JOB_STATE_GATHERING;
  std::string reason;
  // Of a job that has failed.
  v1::JobFailure failure;
  // The job goes on, but without this member: it was given up, or another has its rank. It may join again.
  bool given_up = false;
  // The coordinator fell silent before all had joined: there was no job yet to be lost, and the member may start anew.
  bool before_start = false;
};

// The way to a job's coordinator, and a member's sign of life there: a method for each call of its service, blocking.
// Knows nothing of tensors' bytes. Calls are tried again where a retry helps, for a few seconds, or for the time that
// the job gives a coordinator to return, as its durability says; then their errors name the coordinator's address, the
// call and how long it took. Thread safety: all methods may be called from any thread, but Join, StartHeartbeats, Leave
// and the destructor from one.
class CoordinatorLink {
 public:
  // Waits until it answers; UNAVAILABLE or DEADLINE_EXCEEDED after `timeout`. INVALID_ARGUMENT where the credentials do
  // not do for that address, UNAUTHENTICATED or PERMISSION_DENIED where they do not for that server,
  // FAILED_PRECONDITION where that server holds another job. Each request names `job`; empty: the coordinator's only
  // job.
  static absl::StatusOr<std::unique_ptr<CoordinatorLink>> Connect(const std::string& address, absl::Duration timeout,
                                                                  const Credentials& credentials = {},
                                                                  const std::string& job = "");
  // Ends all calls, without leaving.
  ~CoordinatorLink();

  // Fills in the versions. What follows is said as the member that the answer names. Where another has the rank it asks
  // again for `patience`: one that has died is given up before long.
  absl::StatusOr<v1::JoinResponse> Join(v1::JoinRequest request, absl::Duration patience);

  // Says in the background, at the interval that Join answered, that the member lives. `on_change` is called from that
  // thread when the condition changes; it may be empty and must not call Leave. The job counts as FAILED, too, when the
  // coordinator gives the member up or cannot be reached for longer than it would wait for the member, or the member
  // for it where the job outlives it. One that holds the connection and does not answer is busy, and has a minute.
  void StartHeartbeats(std::function<void(const JobCondition&)> on_change);

  // As of the last heartbeat.
  JobCondition condition() const;

  // Ends the heartbeats and the member's part; empty: it did its part. Works after CancelCalls. A failure of its own is
  // not the job's.
  absl::Status Leave(const std::string& failure, bool worker_local = false);

  // Waits up to `timeout` for data to train on: a lease, or `finished`; by one thread at a time. A lease whose answer
  // was lost comes again. DEADLINE_EXCEEDED names whom it waited for.
  absl::StatusOr<v1::AcquireLeaseResponse> AcquireLease(absl::Duration timeout);
  absl::Status CompleteLease(uint64_t lease_id, uint64_t steps, uint64_t batches);

  absl::StatusOr<v1::JobProgress> ReportProgress(v1::WorkerProgress progress, std::optional<v1::Evaluation> evaluation);
  absl::StatusOr<v1::GetProgressResponse> GetProgress();

  // Waits up to `timeout` for all servers to join.
  absl::StatusOr<ShardMap> PlaceTensors(const std::string& job, absl::Span<const v1::TensorSpec> specs,
                                        absl::Duration timeout);
  absl::StatusOr<ShardMap> GetShardMap();
  // The map once its epoch is above `newer_than`, or as it is when `wait`, at most a minute, is over. Not tried again:
  // its error comes soon after a coordinator is gone.
  absl::StatusOr<ShardMap> AwaitShardMap(uint64_t newer_than, absl::Duration wait);

  // Calls go to the control port that the map names for the coordinator from now on, until it answers no more. Waits up
  // to 2 seconds for it; if there is none or it does not answer, calls go where they went. PlaceTensors follows its
  // map.
  void Follow(const ShardMap& map);

  // Ends calls in flight and all later ones with CANCELLED and the reason; heartbeats go on.
  void CancelCalls(const std::string& reason);

 private:
  template <typename Request, typename Response>
  using Method = void (v1::CoordinatorService::StubInterface::async_interface::*)(grpc::ClientContext*, const Request*,
                                                                                  Response*,
                                                                                  std::function<void(grpc::Status)>);

  CoordinatorLink(const std::string& address, const Credentials& credentials, const std::string& job);
  void ReturnHome();
  std::shared_ptr<v1::CoordinatorService::Stub> stub() const;
  template <typename Response, typename Request>
  absl::StatusOr<Response> Call(CallGroup* group, CallOptions options, Request request,
                                Method<Request, Response> method);
  // Each for one answer; tried again until `timeout` is over.
  CallOptions Within(const char* call, absl::Duration timeout) const;
  // As long as a coordinator that is gone may take to return; an answer may take `wait` on top of its time.
  CallOptions Options(const char* call, absl::Duration wait = absl::ZeroDuration()) const;
  v1::Member member() const;
  void BeatUntilLeft(const std::function<void(const JobCondition&)>& on_change);
  JobCondition Judge(const absl::StatusOr<v1::HeartbeatResponse>& answer, absl::Time last_answer) const;

  // Where it was told to go, and "coordinator at host:port".
  const std::string address_;
  const Credentials credentials_;
  const std::string name_;
  const std::string job_;
  // Shared with calls under way, which outlive a change of the port.
  const std::shared_ptr<v1::CoordinatorService::Stub> home_;

  mutable absl::Mutex mutex_;
  std::shared_ptr<v1::CoordinatorService::Stub> control_ ABSL_GUARDED_BY(mutex_);
  // The control port's address, also if it never answered; empty once it, or the address at home, answered no more.
  std::string control_address_ ABSL_GUARDED_BY(mutex_);
  v1::JoinResponse joined_ ABSL_GUARDED_BY(mutex_);
  // For a coordinator to return.
  absl::Duration patience_ ABSL_GUARDED_BY(mutex_);
  JobCondition condition_ ABSL_GUARDED_BY(mutex_);
  // Leases acquired and not yet complete.
  std::set<uint64_t> held_ ABSL_GUARDED_BY(mutex_);

  // Apart, since they end at different times.
  CallGroup calls_;
  CallGroup heartbeats_;
  CallGroup leaving_;
  std::thread heart_;
};

}  // namespace ballast

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "ballast/v1/coordinator_service.grpc.pb.h"
#include "common/rpc/member_loop.h"
#include "common/rpc/renewed_channel.h"
#include "server/coordinator/standby_table.h"

namespace ballast {

// Owns a server's membership in the job: joins at the coordinator and sends heartbeats.
// Thread safety: all methods may be called from any thread.
class CoordinatorMember {
 public:
  struct Options {
    std::string coordinator;
    // Opens a channel to the coordinator; must succeed at first. Called again when the coordinator is not found.
    RenewedChannel::Open open_channel;
    uint32_t rank = 0;
    // JobOptions::with_standby; if true, `servers` must equal the coordinator's.
    bool with_standby = false;
    uint32_t servers = 1;
    // Addresses at which others reach this server.
    std::string address;
    std::string control_address;
    // Time after which an unreachable coordinator counts as lost, before joining and after; Events::return_time may
    // make it longer after joining.
    absl::Duration coordinator_timeout = absl::Seconds(60);
    // Time within which all servers and workers must join; 0: no limit. Afterwards on_fatal gets DEADLINE_EXCEEDED
    // that names the missing members. Until all have joined it replaces `coordinator_timeout`.
    absl::Duration gather_timeout = absl::ZeroDuration();
  };
  struct Events {
    // Returns the job that the shard holds, which each request names; empty: none yet.
    std::function<std::string()> job;
    // Returns how long the job waits for a lost server to return; 0: it does not.
    std::function<absl::Duration()> return_time;
    // The job has failed; gets the JobFailedError.
    std::function<void(absl::Status)> on_job_failed;
    // None of these may wait for pushes or a disk, because the next heartbeat waits for them. on_absent gets the
    // workers for which the shard must not wait, with each heartbeat.
    std::function<void(const std::vector<v1::Member>&)> on_absent;
    // The shard must be captured for that checkpoint of `servers` shards; called once for each checkpoint.
    std::function<void(uint64_t checkpoint, uint32_t servers)> on_capture;
    // Returns the state of this server's part of the last checkpoint.
    std::function<v1::CheckpointPart()> checkpoint_part;
    // Returns the waits that workers have caused at the shard since the process began.
    std::function<std::vector<v1::CausedWait>()> caused_waits;
    // Gets this process's role once it has joined, and when it takes over.
    std::function<void(const v1::Member&)> on_part;
    // Gets the job's state with each heartbeat.
    std::function<void(v1::JobState)> on_state;
    // With standbys only: pair_news returns the report on the peer, on_heard gets each report that the coordinator
    // has.
    std::function<ReplicationReport()> pair_news;
    std::function<void(const ReplicationReport&)> on_heard;
    // Servers with standbys only: gets the standby, if there is one, after each heartbeat.
    std::function<void(const v1::StandbyTarget&)> on_standby;
    // This member was lost or replaced; its state is obsolete.
    std::function<void(absl::Status)> on_displaced;
    // This server cannot continue: it was refused or replaced, or the coordinator is lost.
    std::function<void(absl::Status)> on_fatal;
  };

  // Joins in the background.
  CoordinatorMember(Options options, Events events);
  // Leaves the job if it has joined.
  ~CoordinatorMember();
  CoordinatorMember(const CoordinatorMember&) = delete;

  // Sends a heartbeat immediately.
  void HeartbeatNow() { loop_.HeartbeatNow(); }

  // Takes a checkpoint if the job's durability does not bring this server back. Blocks for at most `timeout`. Returns
  // a line that says so, or why there is none; empty if none is needed.
  std::string SaveCheckpoint(absl::Duration timeout);

  // The state in the last heartbeat response.
  v1::JobState job_state() const;

 private:
  // Joins or, once joined, sends a heartbeat; a step of the loop.
  std::optional<absl::Duration> Step();
  // Each returns the pause until the next heartbeat.
  absl::StatusOr<absl::Duration> Join();
  absl::StatusOr<absl::Duration> Beat();
  std::unique_ptr<v1::CoordinatorService::Stub> stub() const {
    return v1::CoordinatorService::NewStub(channel_.channel());
  }
  // Retries a call for up to `timeout` while no response comes.
  absl::Status Call(absl::FunctionRef<grpc::Status(grpc::ClientContext*)> call, absl::string_view what,
                    absl::Duration timeout);
  // The DEADLINE_EXCEEDED for members missing too long because of `why`, for example a lost coordinator.
  absl::Status FailToGather(absl::string_view why, const absl::Status& status) const;

  const Options options_;
  const Events events_;
  RenewedChannel channel_;
  const absl::Time started_ = absl::Now();
  mutable absl::Mutex mutex_;
  // Empty before the join, and while this server joins again.
  v1::JoinResponse joined_ ABSL_GUARDED_BY(mutex_);
  v1::JobState job_state_ ABSL_GUARDED_BY(mutex_) = v1::JOB_STATE_GATHERING;
  // The last checkpoint for which the shard was captured; for the loop's thread alone.
  uint64_t captured_ = 0;
  // Declared last, because its thread uses the other fields.
  MemberLoop loop_;
};

}  // namespace ballast

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "ballast/v1/coordinator_service.grpc.pb.h"
#include "server/coordinator/replication_report.h"

namespace ballast {

// A server's own part in the job: joins at the coordinator and keeps saying that it lives.
// Thread safety: all methods may be called from any thread.
class CoordinatorMember {
 public:
  struct Options {
    std::string coordinator;
    // The way there.
    std::shared_ptr<grpc::Channel> channel;
    uint32_t rank = 0;
    // As Coordinator::Options has it; then `servers` must be what the coordinator has, too.
    bool with_standby = false;
    uint32_t servers = 1;
    // What others reach this server by.
    std::string address;
    std::string control_address;
    // How long the coordinator may be silent, before joining and after.
    absl::Duration patience = absl::Seconds(60);
    // For all servers and workers to have joined; 0: no limit. DEADLINE_EXCEEDED, which names who is missing, is fatal.
    // Until then it bounds the coordinator's silence instead of `patience`.
    absl::Duration gather_timeout = absl::ZeroDuration();
  };
  struct Events {
    // The job that the shard holds, which each request names; empty: none yet.
    std::function<std::string()> job;
    // The job has failed, as JobFailedError says it.
    std::function<void(absl::Status)> on_job_failed;
    // None of these may wait for pushes or for a disk: the next heartbeat waits for them.
    // Workers that nobody need wait for; again with each heartbeat.
    std::function<void(const std::vector<v1::Member>&)> on_absent;
    // The shard is to be captured for that checkpoint, one of so many; called once for each.
    std::function<void(uint64_t checkpoint, uint32_t servers)> on_capture;
    // How the part that was captured last goes.
    std::function<v1::CheckpointPart()> checkpoint_part;
    // What this process is from now on: once it has joined, and when it takes over.
    std::function<void(const v1::Member&)> on_part;
    // Of one of a pair: what it says of the other, and that the coordinator has heard it.
    std::function<ReplicationReport()> pair_news;
    std::function<void(const ReplicationReport&)> on_heard;
    // Of a server of a pair: its standby, if it has one; after each heartbeat.
    std::function<void(const v1::StandbyTarget&)> on_standby;
    // It was given up or replaced: what it holds counts no more.
    std::function<void(absl::Status)> on_displaced;
    // This server cannot go on: refused, replaced, or the coordinator is gone.
    std::function<void(absl::Status)> on_fatal;
  };

  // Says what is new now, not with the next heartbeat.
  void HeartbeatNow();

  // Joins in the background.
  CoordinatorMember(Options options, Events events);
  // Leaves where it has joined.
  ~CoordinatorMember();
  CoordinatorMember(const CoordinatorMember&) = delete;

  // As the last heartbeat was answered.
  v1::JobState job_state() const;

 private:
  void Run();
  absl::Status Join();
  absl::Status BeatUntilStopped();
  absl::Status Call(absl::FunctionRef<grpc::Status(grpc::ClientContext*)> call, absl::string_view what,
                    absl::Duration patience);
  // Members have been missing for too long: DEADLINE_EXCEEDED, because the coordinator, for example, does not answer.
  absl::Status FailToGather(absl::string_view why, const absl::Status& status) const;
  // DEADLINE_EXCEEDED if members have been missing for too long.
  absl::Status CheckGathered(const v1::HeartbeatResponse& response) const;
  // Ends early where there is news. False once it is to stop.
  bool Pause(absl::Duration duration);
  // Whether a new name was given.
  bool UpdateIdentity(const v1::Member& member);
  bool stopping() const;

  const Options options_;
  const Events events_;
  const std::unique_ptr<v1::CoordinatorService::Stub> stub_;
  const absl::Time started_ = absl::Now();
  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool hastened_ ABSL_GUARDED_BY(mutex_) = false;
  // The call under way; the destructor cancels it.
  grpc::ClientContext* calling_ ABSL_GUARDED_BY(mutex_) = nullptr;
  v1::JoinResponse joined_ ABSL_GUARDED_BY(mutex_);
  v1::JobState job_state_ ABSL_GUARDED_BY(mutex_) = v1::JOB_STATE_GATHERING;
  std::thread thread_;
};

}  // namespace ballast

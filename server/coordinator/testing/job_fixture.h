// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/tables/table_spec_fixture.h"
#include "common/tensors/tensor_spec_fixture.h"
#include "gtest/gtest.h"
#include "server/coordinator/coordinator_journal.h"
#include "server/coordinator/job_control.h"

namespace ballast {

inline v1::Job SyncJob(v1::Durability::Mode mode = v1::Durability::NONE, const std::string& name = "job") {
  v1::Job job;
  job.set_name(name);
  job.mutable_training()->set_epochs(1);
  job.mutable_training()->set_batch_size(10);
  job.mutable_policy()->mutable_sync();
  if (mode != v1::Durability::NONE) job.mutable_durability()->set_mode(mode);
  return job;
}

inline Newcomer ServerAt(std::optional<uint32_t> rank, const std::string& address = "127.0.0.1:1",
                         const std::string& process = "server process", bool with_standby = false) {
  return {MemberRole::kServer, rank, address, process, {}, 0, with_standby};
}

inline Newcomer WorkerOf(std::optional<uint32_t> rank, const v1::Job& job = SyncJob(), uint64_t examples = 20,
                         const std::string& process = "worker process") {
  return {MemberRole::kWorker, rank, "", process, job, examples};
}

// Keeps each state, unless the test makes its disk full.
class MemoryJournal : public CoordinatorJournal {
 public:
  absl::Status Save(absl::string_view state, bool) override {
    if (full) return absl::ResourceExhaustedError("the disk is full");
    ++saves;
    saved = std::string(state);
    return absl::OkStatus();
  }
  void Settle() override {}
  bool full = false;
  int saves = 0;
  std::string saved;
};

// The rules of a job with one server and two workers, and its time.
class JobControlTest : public testing::Test {
 protected:
  absl::StatusOr<Membership::Id> JoinServer(uint32_t rank) { return control_->Join(ServerAt(rank), now_); }
  absl::StatusOr<Membership::Id> JoinWorker(uint32_t rank, const v1::Job& job = SyncJob(), uint64_t examples = 20) {
    return control_->Join(WorkerOf(rank, job, examples), now_);
  }
  void Gather(const v1::Job& job = SyncJob(), uint64_t examples = 20) {
    server_ = *JoinServer(0);
    worker0_ = *JoinWorker(0, job, examples);
    worker1_ = *JoinWorker(1, job, examples);
  }
  absl::StatusOr<JobControl::HeartbeatReply> Beat(const Membership::Id& id, const v1::CheckpointPart& part = {}) {
    return control_->Heartbeat(id, part, {}, now_);
  }
  absl::Status Leave(const Membership::Id& id, const std::string& failure, bool worker_local = false) {
    return control_->Leave(id, failure, worker_local, now_);
  }
  // Returns the id of the next lease; 0 if there is none now.
  uint64_t Acquire(const Membership::Id& id, const std::vector<uint64_t>& held = {}) {
    const auto grant = control_->workers().Acquire(id, held, now_);
    return grant.has_value() && (*grant)->lease.has_value() ? (*grant)->lease->id : 0;
  }
  absl::Status Complete(const Membership::Id& id, uint64_t lease, uint64_t steps = 0, uint64_t batches = 0) {
    return control_->CompleteLease(id, lease, steps, batches, now_);
  }
  absl::StatusOr<v1::JobProgress> Report(const Membership::Id& id, const v1::WorkerProgress& progress,
                                         const v1::Evaluation* evaluation = nullptr) {
    absl::Status status = control_->ReportProgress(id, progress, evaluation, now_);
    if (!status.ok()) return status;
    return Progress();
  }
  v1::JobProgress Progress() const { return control_->Progress(now_); }
  v1::JobState State() const { return control_->status().state(); }
  // Time passes, and these members send heartbeats.
  void Silence(const std::vector<Membership::Id>& heard, absl::Duration time) {
    for (; time > absl::ZeroDuration(); time -= absl::Seconds(1)) {
      now_ += absl::Seconds(1);
      for (const Membership::Id& id : heard) ASSERT_TRUE(Beat(id).ok());
    }
  }

  absl::Time now_ = absl::UnixEpoch();
  std::optional<JobControl> control_{std::in_place, JobOptions{.servers = 1, .workers = 2}, now_};
  Membership::Id server_, worker0_, worker1_;
};

}  // namespace ballast

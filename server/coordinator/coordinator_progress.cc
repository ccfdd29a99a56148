// SPDX-License-Identifier: Apache-2.0
// The progress report of a Coordinator.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/job/kind_names.h"
#include "server/coordinator/coordinator.h"

namespace ballast {
namespace {

absl::string_view StateName(Membership::State state) {
  switch (state) {
    case Membership::State::kJoined:
      return "joined";
    case Membership::State::kLeft:
      return "left";
    case Membership::State::kLost:
      return "lost";
    case Membership::State::kFailed:
      return "failed";
  }
  return "";
}

}  // namespace

absl::StatusOr<v1::JobProgress> Coordinator::ReportProgress(const Membership::Id& id,
                                                            const v1::WorkerProgress& progress,
                                                            const v1::Evaluation* evaluation) {
  absl::MutexLock lock(&mutex_);
  if (absl::Status status = CheckWorkerLocked(id); !status.ok()) return status;
  board_.Report(id.rank, id.incarnation, progress);
  if (evaluation != nullptr) board_.Evaluated(*evaluation);
  ++changes_;
  return ProgressLocked();
}

Coordinator::Beginning Coordinator::BeginningOf(const Membership::Id& worker) const {
  absl::MutexLock lock(&mutex_);
  Beginning beginning{board_.StepOf(worker.rank), std::nullopt};
  if (ResumedLocked() && worker.incarnation == membership_.first_incarnation(worker.rank)) {
    beginning.resumed_batches = board_.BatchesOf(worker.rank);
  }
  return beginning;
}

absl::Duration Coordinator::RunningForLocked() const {
  if (running_since_ == absl::InfiniteFuture()) return absl::ZeroDuration();
  return std::min(clock_->Now(), ended_) - running_since_;
}

std::string Coordinator::ReasonLocked() const {
  return state_ == v1::JOB_STATE_GATHERING ? absl::StrCat("waiting for ", ExplainWaitLocked()) : reason_;
}

v1::JobProgress Coordinator::ProgressLocked() const {
  v1::JobProgress progress;
  progress.set_state(state_);
  progress.set_reason(ReasonLocked());
  if (state_ == v1::JOB_STATE_FAILED) *progress.mutable_failure() = failure_;
  if (job_.has_value()) {
    progress.set_job(job_->name());
    progress.set_mode(KindName(job_->policy()));
    progress.set_epochs(job_->training().epochs());
    progress.set_total_examples(train_examples_ * job_->training().epochs());
  }
  progress.set_seconds(absl::ToDoubleSeconds(RunningForLocked()));
  progress.set_workers_lost(workers_lost_);
  progress.set_servers_lost(servers_lost_);
  if (leases_.has_value()) progress.set_examples_repeated(leases_->repeated_examples());
  progress.mutable_notices()->Add(notices_.begin(), notices_.end());
  progress.set_notices_made(notices_made_);
  board_.Fill(progress);
  return progress;
}

v1::JobProgress Coordinator::progress() const {
  absl::MutexLock lock(&mutex_);
  return ProgressLocked();
}

v1::GetProgressResponse Coordinator::Describe() {
  v1::GetProgressResponse response = DescribeNow();
  if (!options_.with_standby || options_.journal == nullptr) return response;
  uint64_t told = 0;
  {
    absl::MutexLock lock(&mutex_);
    told = told_;
  }
  // If the last save failed, this starts another.
  AwaitSaved(told, [](const absl::Status&) {});
  if (saves_.saved() >= told) return response;
  for (auto& member : *response.mutable_members()) member.clear_in_step();
  return response;
}

v1::GetProgressResponse Coordinator::DescribeNow() const {
  v1::GetProgressResponse response;
  absl::MutexLock lock(&mutex_);
  *response.mutable_progress() = ProgressLocked();
  response.set_servers(options_.servers);
  response.set_workers(options_.workers);
  for (const Membership::Member& member : membership_.members()) {
    v1::GetProgressResponse::MemberStatus* status = response.add_members();
    *status->mutable_member() = ToProto(member.id);
    status->set_address(member.address);
    status->set_description(member.description);
    status->set_process(member.process);
    status->set_state(std::string(StateName(member.state)));
    status->set_seconds_since_heartbeat(absl::ToDoubleSeconds(clock_->Now() - member.last_heard));
    if (member.id.role == MemberRole::kWorker) status->set_step(board_.StepOf(member.id.rank));
    status->set_reason(member.reason);
    if (member.id.role == MemberRole::kStandby) {
      status->set_in_step(member.id.incarnation == standbys_.ready(member.id.rank));
      if (member.id.incarnation == standbys_.follower(member.id.rank)) {
        *status->mutable_standby() = standbys_.last_report(member.id.rank);
      }
    }
  }
  for (v1::GetProgressResponse::WorkerPushes& pushes : board_.Pushes()) *response.add_pushes() = std::move(pushes);
  return response;
}

}  // namespace ballast

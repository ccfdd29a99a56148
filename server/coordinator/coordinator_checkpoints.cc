// SPDX-License-Identifier: Apache-2.0
// The checkpoints of a Coordinator: those that it takes, and the one from which its job resumes.
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/job/durability_config.h"
#include "common/program/version.h"
#include "common/status/error_reason.h"
#include "server/coordinator/coordinator.h"

namespace ballast {

absl::StatusOr<LeaseTable> Coordinator::BeginLeases(const Newcomer& newcomer) const {
  LeaseTable leases(LeaseOptions(newcomer.job, newcomer.train_examples));
  if (!options_.resume.has_value()) return leases;
  const internal::v1::CheckpointManifest& from = *options_.resume;
  const std::string what = absl::StrCat("cannot resume from checkpoint ", from.id(), ": ");
  if (from.job().name() != newcomer.job.name()) {
    return WithReason(v1::ERROR_REASON_CHECKPOINT_UNUSABLE,
                      absl::FailedPreconditionError(absl::StrCat(what, "it belongs to job \"", from.job().name(),
                                                                 "\", got job \"", newcomer.job.name(), "\"")));
  }
  if (from.train_examples() != newcomer.train_examples) {
    return WithReason(v1::ERROR_REASON_CHECKPOINT_UNUSABLE,
                      absl::FailedPreconditionError(absl::StrCat(what, "it was trained on ", from.train_examples(),
                                                                 " examples, got ", newcomer.train_examples)));
  }
  if (absl::Status status = leases.Resume(from.leases()); !status.ok()) {
    return WithReason(v1::ERROR_REASON_CHECKPOINT_UNUSABLE,
                      absl::FailedPreconditionError(absl::StrCat(what, status.message())));
  }
  return leases;
}

internal::v1::CheckpointManifest Coordinator::MakeManifestLocked() const {
  internal::v1::CheckpointManifest manifest;
  manifest.set_version(kVersion);
  manifest.set_created_unix_ms(absl::ToUnixMillis(absl::Now()));
  *manifest.mutable_job() = *job_;
  manifest.set_train_examples(train_examples_);
  *manifest.mutable_map() = map_.ToProto();
  *manifest.mutable_leases() = leases_->Export();
  *manifest.mutable_progress() = board_.Export();
  manifest.mutable_incarnations()->Resize(options_.workers, 0);
  for (const Membership::Member& member : membership_.members()) {
    if (member.id.role == MemberRole::kWorker) manifest.set_incarnations(member.id.rank, member.id.incarnation);
  }
  manifest.set_seconds(absl::ToDoubleSeconds(RunningForLocked()));
  return manifest;
}

void Coordinator::GiveUpCheckpointLocked(const std::string& reason) {
  NoteLocked(absl::StrCat("checkpoint ", plan_->id(), " was abandoned: ", reason, "; the next one is due in ",
                          absl::FormatDuration(CheckpointInterval(job_->durability()))));
  leases_->Release();
  plan_->End(clock_->Now());
}

void Coordinator::AdvanceCheckpointLocked(uint32_t server, const v1::CheckpointPart& part, HeartbeatReply& reply) {
  const absl::Time now = clock_->Now();
  const bool wanted = options_.checkpoints != nullptr && leases_.has_value() && TakesCheckpoints(job_->durability());
  if (!plan_.has_value() && wanted && state_ == v1::JOB_STATE_RUNNING) {
    plan_.emplace(
        CheckpointPlan::Options{CheckpointInterval(job_->durability()), options_.servers, options_.first_checkpoint},
        now);
  }
  if (!plan_.has_value()) return;
  if (state_ != v1::JOB_STATE_RUNNING) {
    leases_->Release();
    plan_->End(now);
    return;
  }
  const bool held = plan_->holds();
  // A commit no longer needs any server.
  const bool under_way =
      plan_->phase() != CheckpointPlan::Phase::kIdle && plan_->phase() != CheckpointPlan::Phase::kCommitting;
  if (const std::string missing = membership_.MissingServers(); !missing.empty()) {
    if (under_way) GiveUpCheckpointLocked(absl::StrCat(missing, " is missing"));
    return;
  }
  if (const std::optional<std::string> overdue = plan_->Overdue(now)) return GiveUpCheckpointLocked(*overdue);
  if (const std::optional<std::string> failure = plan_->Report(server, part, now)) {
    return GiveUpCheckpointLocked(*failure);
  }
  plan_->OnHeartbeat(server, now);
  if (plan_->phase() == CheckpointPlan::Phase::kDraining) {
    if (!held) leases_->Hold();
    if (leases_->AtRest()) plan_->Capture(MakeManifestLocked(), now);
  }
  if (held && !plan_->holds()) {
    leases_->Release();
    // Waiting calls may get data now.
    ++changes_;
  }
  reply.heartbeat_now = plan_->hastens();
  if (plan_->phase() == CheckpointPlan::Phase::kCapturing) reply.capture_checkpoint_id = plan_->id();
}

void Coordinator::BeginCommit() {
  internal::v1::CheckpointManifest manifest;
  uint32_t keep = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (committing_ || !plan_.has_value() || plan_->phase() != CheckpointPlan::Phase::kCommitting) return;
    committing_ = true;
    // The job, and the plan with it, may end before the commit; the checkpoint is complete nevertheless.
    manifest = plan_->manifest();
    keep = CheckpointsKept(job_->durability());
  }
  if (disk_ == nullptr) return CommitCheckpoint(manifest, keep);
  if (disk_->Submit([this, manifest, keep] { CommitCheckpoint(manifest, keep); }).ok()) return;
  // The next heartbeat retries.
  absl::MutexLock lock(&mutex_);
  committing_ = false;
}

void Coordinator::CommitCheckpoint(const internal::v1::CheckpointManifest& manifest, uint32_t keep) {
  const absl::Status status = options_.checkpoints->Commit(manifest);
  // The next commit removes files that remain.
  if (status.ok()) options_.checkpoints->Prune(keep, manifest.id()).IgnoreError();
  {
    absl::MutexLock lock(&mutex_);
    committing_ = false;
    // The job, and the plan with it, may have ended meanwhile.
    if (plan_->phase() != CheckpointPlan::Phase::kCommitting || plan_->id() != manifest.id()) return;
    if (status.ok()) return plan_->End(clock_->Now());
    GiveUpCheckpointLocked(std::string(status.message()));
  }
  Publish();
}

}  // namespace ballast

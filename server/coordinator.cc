// SPDX-License-Identifier: Apache-2.0
#include "server/coordinator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/job_length.h"
#include "common/policy_config.h"
#include "common/tensor_spec.h"
#include "google/protobuf/util/message_differencer.h"

namespace ballast {
namespace {

// Positions of an epoch are counted in 64 bits, with room for a round's arithmetic.
constexpr uint64_t kMaxExamples = uint64_t{1} << 48;
constexpr uint32_t kMaxBatch = uint32_t{1} << 20;

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

v1::Role ToProto(MemberRole role) { return role == MemberRole::kServer ? v1::ROLE_SERVER : v1::ROLE_WORKER; }

}  // namespace

Coordinator::Coordinator(const Options& options, const Clock* clock)
    : options_(options),
      clock_(clock),
      membership_(options.servers, options.workers, options.member_ttl, clock),
      board_(clock),
      waits_(clock) {}

absl::Status Coordinator::AcceptJobLocked(const Newcomer& newcomer) {
  const v1::Job& job = newcomer.job;
  if (absl::Status status = ValidateJobName(job.name()); !status.ok()) return status;
  if (newcomer.train_examples < 1 || newcomer.train_examples > kMaxExamples || job.training().batch_size() < 1 ||
      job.training().batch_size() > kMaxBatch || job.training().epochs() < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("job \"", job.name(), "\": got ", newcomer.train_examples, " examples, batch size ",
                     job.training().batch_size(), ", ", job.training().epochs(),
                     " epochs, want at least 1 of each, at most 2^48 examples and a batch of 2^20"));
  }
  if (!job_.has_value()) {
    job_ = job;
    train_examples_ = newcomer.train_examples;
    leases_.emplace(LeaseBook::Options{newcomer.train_examples, job.training().epochs(), options_.workers,
                                       job.training().batch_size(), KeepsLockStep(job.policy()), BatchesPerPush(job)});
    return absl::OkStatus();
  }
  google::protobuf::util::MessageDifferencer differencer;
  std::string difference;
  differencer.ReportDifferencesToString(&difference);
  if (!differencer.Compare(*job_, job)) {
    std::replace(difference.begin(), difference.end(), '\n', ';');
    return absl::FailedPreconditionError(
        absl::StrCat("job \"", job_->name(), "\": ", newcomer.description, " has another job file: ", difference));
  }
  if (newcomer.train_examples == train_examples_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("job \"", job_->name(), "\": ", newcomer.description, " has ",
                                                    newcomer.train_examples, " training examples, the others have ",
                                                    train_examples_));
}

absl::StatusOr<Membership::Id> Coordinator::Join(Newcomer newcomer) {
  absl::StatusOr<Membership::Id> id;
  {
    absl::MutexLock lock(&mutex_);
    membership_.Expire();
    if (state_ == v1::JOB_STATE_FINISHED || state_ == v1::JOB_STATE_FAILED) {
      return absl::FailedPreconditionError(absl::StrCat("the job has ended (",
                                                        state_ == v1::JOB_STATE_FINISHED ? "finished" : reason_,
                                                        "); start the servers anew to train again"));
    }
    if (newcomer.role == MemberRole::kWorker) {
      if (absl::Status status = AcceptJobLocked(newcomer); !status.ok()) return status;
    }
    id = membership_.Join(newcomer.role, newcomer.rank, std::move(newcomer.address), std::move(newcomer.description));
    if (!id.ok()) return id;
    UpdateStateLocked();
  }
  Wake();
  return id;
}

void Coordinator::FailLocked(std::string reason) {
  if (state_ == v1::JOB_STATE_FAILED || state_ == v1::JOB_STATE_FINISHED) return;
  state_ = v1::JOB_STATE_FAILED;
  reason_ = std::move(reason);
  ended_ = clock_->Now();
}

void Coordinator::UpdateStateLocked() {
  const std::vector<Membership::Member> lost = membership_.Expire();
  if (state_ == v1::JOB_STATE_RUNNING && !lost.empty()) {
    FailLocked(
        absl::StrCat(ballast::Describe(lost[0]), " was not heard of for ", absl::FormatDuration(options_.member_ttl)));
  }
  if (state_ == v1::JOB_STATE_GATHERING && membership_.Missing().empty()) {
    state_ = v1::JOB_STATE_RUNNING;
    running_since_ = clock_->Now();
  }
  if (state_ == v1::JOB_STATE_RUNNING && leases_.has_value() && leases_->Finished()) {
    state_ = v1::JOB_STATE_FINISHED;
    ended_ = clock_->Now();
  }
}

absl::StatusOr<Coordinator::Verdict> Coordinator::Heartbeat(const Membership::Id& id) {
  Verdict verdict;
  bool changed = false;
  {
    absl::MutexLock lock(&mutex_);
    if (absl::Status status = membership_.Heartbeat(id); !status.ok()) return status;
    const v1::JobState before = state_;
    UpdateStateLocked();
    changed = state_ != before;
    verdict = {state_, reason_};
  }
  if (changed) Wake();
  return verdict;
}

absl::Status Coordinator::Leave(const Membership::Id& id, const std::string& failure) {
  {
    absl::MutexLock lock(&mutex_);
    const auto state = failure.empty() ? Membership::State::kLeft : Membership::State::kFailed;
    if (absl::Status status = membership_.Leave(id, state); !status.ok()) return status;
    if (id.role == MemberRole::kWorker && leases_.has_value()) leases_->Release(id.rank);
    if (!failure.empty()) {
      FailLocked(absl::StrCat(RoleName(id.role), " ", id.rank, " failed: ", failure));
    } else if (state_ == v1::JOB_STATE_RUNNING && leases_.has_value() && !leases_->Finished()) {
      FailLocked(absl::StrCat(RoleName(id.role), " ", id.rank, " left before the job was done"));
    }
    UpdateStateLocked();
  }
  Wake();
  return absl::OkStatus();
}

absl::StatusOr<ShardMap> Coordinator::PlaceTensors(absl::string_view job, absl::Span<const v1::TensorSpec> specs) {
  absl::MutexLock lock(&mutex_);
  if (std::string missing = membership_.MissingServers(); !missing.empty()) {
    return absl::UnavailableError(absl::StrCat("tensors cannot be placed yet: ", missing, " has not joined"));
  }
  if (job_.has_value() && job_->name() != job) {
    return absl::FailedPreconditionError(absl::StrCat("the job is \"", job_->name(), "\", got \"", job, "\""));
  }
  if (map_.shards().empty()) map_ = ShardMap(membership_.ServerAddresses());
  if (absl::Status status = map_.Place(specs); !status.ok()) return status;
  return map_;
}

ShardMap Coordinator::shard_map() const {
  absl::MutexLock lock(&mutex_);
  return map_.shards().empty() ? ShardMap(membership_.ServerAddresses()) : map_;
}

absl::Status Coordinator::CheckWorkerLocked(const Membership::Id& id) {
  if (id.role != MemberRole::kWorker) return absl::InvalidArgumentError("got a server, want a worker");
  if (state_ == v1::JOB_STATE_FAILED) return absl::AbortedError(absl::StrCat("the job has failed: ", reason_));
  return membership_.Heartbeat(id);
}

std::string Coordinator::ExplainWaitLocked() const {
  if (std::string missing = membership_.Missing(); !missing.empty() && state_ == v1::JOB_STATE_GATHERING) {
    return absl::StrCat(missing, " to join");
  }
  return leases_.has_value() ? leases_->Outstanding() : "";
}

std::optional<absl::StatusOr<Coordinator::Grant>> Coordinator::TryGrantLocked(const Membership::Id& id,
                                                                              absl::Span<const uint64_t> held) {
  if (absl::Status status = CheckWorkerLocked(id); !status.ok()) return status;
  if (state_ == v1::JOB_STATE_GATHERING || !leases_.has_value()) return std::nullopt;
  Grant grant;
  grant.lease = leases_->Unanswered(id.rank, held);
  if (!grant.lease.has_value()) grant.lease = leases_->Acquire(id.rank);
  grant.finished = !grant.lease.has_value() && leases_->Finished();
  if (!grant.lease.has_value() && !grant.finished) return std::nullopt;
  return grant;
}

void Coordinator::AcquireLease(const Membership::Id& id, std::vector<uint64_t> held, absl::Duration wait,
                               GrantDone done) {
  AcquireUntil(id, held, clock_->Now() + wait, std::move(done));
}

void Coordinator::AcquireUntil(const Membership::Id& id, const std::vector<uint64_t>& held, absl::Time deadline,
                               GrantDone done) {
  std::optional<absl::StatusOr<Grant>> grant;
  {
    absl::MutexLock lock(&mutex_);
    grant = TryGrantLocked(id, held);
    if (!grant.has_value()) {
      auto look_again = [this, id, held, deadline, done](absl::Status status) {
        if (status.ok()) return AcquireUntil(id, held, deadline, done);
        if (status.code() != absl::StatusCode::kDeadlineExceeded) return done(status);
        Grant nothing;
        nothing.waiting_for = std::string(status.message());
        done(nothing);
      };
      auto explain = [this] {
        absl::MutexLock lock(&mutex_);
        return ExplainWaitLocked();
      };
      parked_.push_back(waits_.Enter(1, deadline, explain, look_again));
    }
  }
  if (grant.has_value()) done(*std::move(grant));
}

void Coordinator::Wake() {
  std::vector<WaitRoom::Ticket> parked;
  {
    absl::MutexLock lock(&mutex_);
    parked.swap(parked_);
  }
  for (WaitRoom::Ticket ticket : parked) waits_.Arrive(ticket);
}

absl::Status Coordinator::CompleteLease(const Membership::Id& id, uint64_t lease_id) {
  {
    absl::MutexLock lock(&mutex_);
    if (absl::Status status = CheckWorkerLocked(id); !status.ok()) return status;
    if (!leases_.has_value()) return absl::FailedPreconditionError("no worker has brought a job yet");
    if (absl::Status status = leases_->Complete(id.rank, lease_id); !status.ok()) return status;
    UpdateStateLocked();
  }
  Wake();
  return absl::OkStatus();
}

absl::StatusOr<v1::JobProgress> Coordinator::ReportProgress(const Membership::Id& id,
                                                            const v1::WorkerProgress& progress,
                                                            const v1::Evaluation* evaluation) {
  absl::MutexLock lock(&mutex_);
  if (absl::Status status = CheckWorkerLocked(id); !status.ok()) return status;
  board_.Report(id.rank, progress);
  if (evaluation != nullptr) board_.Evaluated(*evaluation);
  return ProgressLocked();
}

v1::JobProgress Coordinator::ProgressLocked() const {
  v1::JobProgress progress;
  progress.set_state(state_);
  progress.set_reason(state_ == v1::JOB_STATE_GATHERING ? absl::StrCat("waits for ", ExplainWaitLocked()) : reason_);
  if (job_.has_value()) {
    progress.set_job(job_->name());
    progress.set_mode(std::string(PolicyMode(job_->policy())));
    progress.set_epochs(job_->training().epochs());
    progress.set_total_examples(train_examples_ * job_->training().epochs());
  }
  if (running_since_ != absl::InfiniteFuture()) {
    progress.set_seconds(absl::ToDoubleSeconds(std::min(clock_->Now(), ended_) - running_since_));
  }
  board_.Fill(progress);
  return progress;
}

v1::JobProgress Coordinator::progress() const {
  absl::MutexLock lock(&mutex_);
  return ProgressLocked();
}

std::string Coordinator::job_name() const {
  absl::MutexLock lock(&mutex_);
  return job_.has_value() ? job_->name() : std::string();
}

v1::GetProgressResponse Coordinator::Describe() const {
  v1::GetProgressResponse response;
  absl::MutexLock lock(&mutex_);
  *response.mutable_progress() = ProgressLocked();
  response.set_servers(options_.servers);
  response.set_workers(options_.workers);
  for (const Membership::Member& member : membership_.members()) {
    v1::GetProgressResponse::MemberStatus* status = response.add_members();
    status->mutable_member()->set_role(ToProto(member.id.role));
    status->mutable_member()->set_rank(member.id.rank);
    status->mutable_member()->set_incarnation(member.id.incarnation);
    status->set_address(member.address);
    status->set_description(member.description);
    status->set_state(std::string(StateName(member.state)));
    status->set_seconds_since_heartbeat(absl::ToDoubleSeconds(clock_->Now() - member.last_heard));
    if (member.id.role == MemberRole::kWorker) status->set_step(board_.StepOf(member.id.rank));
  }
  return response;
}

}  // namespace ballast

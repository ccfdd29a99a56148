// SPDX-License-Identifier: Apache-2.0
// Of a Coordinator: who trains on which data.
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/job_length.h"
#include "common/policy_config.h"
#include "server/coordinator.h"

namespace ballast {

LeaseBook::Options Coordinator::LeaseOptions(const v1::Job& job, uint64_t train_examples) const {
  return {train_examples,
          job.training().epochs(),
          options_.workers,
          job.training().batch_size(),
          KeepsLockStep(job.policy()),
          BatchesPerPush(job)};
}

absl::Status Coordinator::CheckWorkerLocked(const Membership::Id& id) {
  if (id.role != MemberRole::kWorker) {
    return absl::InvalidArgumentError(absl::StrCat("got a ", RoleName(id.role), ", want a worker"));
  }
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
  if (!grant.lease.has_value()) {
    grant.lease = leases_->Acquire(id.rank);
    ++changes_;
  }
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
  uint64_t change = 0;
  {
    absl::MutexLock lock(&mutex_);
    grant = TryGrantLocked(id, held);
    change = changes_;
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
  if (!grant.has_value()) return;
  if (!grant->ok()) return done(*std::move(grant));
  AwaitSaved(change, [grant = *std::move(grant), done = std::move(done)](const absl::Status& saved) {
    done(saved.ok() ? grant : saved);
  });
}

absl::Status Coordinator::CompleteLease(const Membership::Id& id, uint64_t lease_id, uint64_t steps, uint64_t batches) {
  {
    absl::MutexLock lock(&mutex_);
    if (absl::Status status = CheckWorkerLocked(id); !status.ok()) return status;
    if (!leases_.has_value()) return absl::FailedPreconditionError("no worker has brought a job yet");
    if (absl::Status status = leases_->Complete(id.rank, lease_id); !status.ok()) return status;
    board_.EndedLease(id.rank, steps, batches);
    ++changes_;
    UpdateStateLocked();
  }
  Publish();
  return absl::OkStatus();
}

}  // namespace ballast

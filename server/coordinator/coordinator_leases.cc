// SPDX-License-Identifier: Apache-2.0
// The data leases of a Coordinator.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/job/job_length.h"
#include "common/status/error_reason.h"
#include "common/status/job_failure.h"
#include "server/coordinator/coordinator.h"

namespace ballast {
namespace {

// A worker holds one lease and may have requested the next.
constexpr size_t kMaxLeasesHeld = 1024;

absl::Status NoData(absl::string_view job) {
  return WithReason(v1::ERROR_REASON_NO_DATA,
                    absl::FailedPreconditionError(absl::StrCat(
                        "job \"", job, "\" has no data to lease: it was joined without a model, data and examples")));
}

}  // namespace

bool Coordinator::LeasesData(const v1::Job& job, uint64_t train_examples) {
  return job.has_model() || job.has_data() || train_examples > 0;
}

LeaseTable::Options Coordinator::LeaseOptions(const v1::Job& job, uint64_t train_examples) const {
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
  if (state_ == v1::JOB_STATE_FAILED) return JobFailedError(reason_, failure_);
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
  if (!leases_.has_value()) return NoData(job_->name());
  if (state_ == v1::JOB_STATE_GATHERING) return std::nullopt;
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

// A waiting call of AcquireLease; the coordinator's lock guards `ticket` and `grant`.
struct Coordinator::LeaseWait {
  const Membership::Id id;
  const std::vector<uint64_t> held;
  const GrantDone done;
  WaitList::Ticket ticket = WaitList::kNoTicket;
  std::optional<absl::StatusOr<Grant>> grant;
};

WaitList::Ticket Coordinator::AcquireLease(const Membership::Id& id, std::vector<uint64_t> held, absl::Duration wait,
                                           GrantDone done) {
  if (held.size() > kMaxLeasesHeld) {
    done(absl::InvalidArgumentError(absl::StrCat("held leases: got ", held.size(), ", want at most ", kMaxLeasesHeld)));
    return WaitList::kNoTicket;
  }
  // Shared by the callbacks of the wait list, which frees them together.
  const auto call = std::make_shared<LeaseWait>(LeaseWait{id, std::move(held), std::move(done)});
  std::optional<absl::StatusOr<Grant>> grant;
  WaitList::Ticket displaced = WaitList::kNoTicket;
  {
    absl::MutexLock lock(&mutex_);
    if (absl::Status status = CheckWorkerLocked(id); !status.ok()) {
      grant = status;
    } else {
      grant = TryGrantLocked(id, call->held);
    }
    if (!grant.has_value()) {
      auto look_again = [this, call](WaitList::Ticket) {
        absl::MutexLock again(&mutex_);
        if (call->grant.has_value()) return true;
        // The worker may have been lost meanwhile, so a check must not count as its heartbeat.
        const absl::Status status =
            state_ == v1::JOB_STATE_FAILED ? CheckWorkerLocked(call->id) : membership_.CheckJoined(call->id);
        if (!status.ok()) {
          call->grant = status;
        } else {
          call->grant = TryGrantLocked(call->id, call->held);
        }
        return call->grant.has_value();
      };
      auto explain = [this] {
        absl::MutexLock now(&mutex_);
        return ExplainWaitLocked();
      };
      call->ticket = waits_.Add(clock_->Now() + wait, look_again, explain,
                                [this, call](const absl::Status& status) { EndLeaseWait(*call, status); });
      displaced = std::exchange(lease_waits_[{id.rank, id.incarnation}], call->ticket);
    }
  }
  if (grant.has_value()) {
    AnswerLease(*call, *std::move(grant));
    return WaitList::kNoTicket;
  }
  if (displaced != WaitList::kNoTicket) {
    waits_.End(displaced, absl::CancelledError(absl::StrCat("replaced by a later call of worker ", id.rank)));
  }
  return call->ticket;
}

void Coordinator::EndLeaseWait(const LeaseWait& call, const absl::Status& status) {
  std::optional<absl::StatusOr<Grant>> grant;
  {
    absl::MutexLock lock(&mutex_);
    const auto waiting = lease_waits_.find({call.id.rank, call.id.incarnation});
    if (waiting != lease_waits_.end() && waiting->second == call.ticket) lease_waits_.erase(waiting);
    grant = call.grant;
  }
  if (grant.has_value()) return AnswerLease(call, *std::move(grant));
  if (!absl::IsDeadlineExceeded(status)) return call.done(status);
  Grant nothing;
  nothing.waiting_for = std::string(status.message());
  call.done(nothing);
}

void Coordinator::AnswerLease(const LeaseWait& call, absl::StatusOr<Grant> grant) {
  if (!grant.ok()) return call.done(std::move(grant));
  AwaitSaved([grant = *std::move(grant), done = call.done](const absl::Status& saved) {
    if (!saved.ok()) return done(saved);
    done(grant);
  });
}

absl::Status Coordinator::CompleteLease(const Membership::Id& id, uint64_t lease_id, uint64_t steps, uint64_t batches) {
  {
    absl::MutexLock lock(&mutex_);
    if (absl::Status status = CheckWorkerLocked(id); !status.ok()) return status;
    if (!leases_.has_value()) return NoData(job_->name());
    if (absl::Status status = leases_->Complete(id.rank, lease_id); !status.ok()) return status;
    board_.EndedLease(id.rank, steps, batches);
    ++changes_;
    UpdateStateLocked();
  }
  Publish();
  return absl::OkStatus();
}

}  // namespace ballast

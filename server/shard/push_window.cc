// SPDX-License-Identifier: Apache-2.0
#include "server/shard/push_window.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"

namespace ballast {

absl::Status PushWindow::CheckIncarnationLocked(uint64_t incarnation) const {
  if (incarnation >= incarnation_) return absl::OkStatus();
  return WithReason(v1::ERROR_REASON_STALE_INCARNATION,
                    absl::FailedPreconditionError(
                        absl::StrCat("push of incarnation ", incarnation,
                                     ", want the newest: the worker restarted as incarnation ", incarnation_)),
                    {{"incarnation", absl::StrCat(incarnation_)}});
}

absl::Status PushWindow::CheckIncarnation(uint64_t incarnation) const {
  absl::MutexLock lock(&mutex_);
  return CheckIncarnationLocked(incarnation);
}

absl::StatusOr<PushWindow::Begun> PushWindow::Begin(uint64_t incarnation, uint64_t sequence) {
  absl::MutexLock lock(&mutex_);
  if (absl::Status status = CheckIncarnationLocked(incarnation); !status.ok()) return status;
  if (incarnation > incarnation_ || entries_.empty()) {
    incarnation_ = incarnation;
    highest_ = 0;
    accepted_of_incarnation_ = 0;
    entries_.assign(kSize, Entry());
  }
  Entry& entry = entries_[sequence % kSize];
  if (entry.sequence == sequence) {
    if (entry.finished) return Begun{Start::kDuplicate, entry.outcome};
    return WithReason(v1::ERROR_REASON_PUSH_IN_PROGRESS,
                      absl::UnavailableError(absl::StrCat("push ", sequence, " is being applied; retry")),
                      {{"sequence", absl::StrCat(sequence)}});
  }
  if (sequence + kSize <= highest_) {
    return WithReason(
        v1::ERROR_REASON_SEQUENCE_FORGOTTEN,
        absl::FailedPreconditionError(absl::StrCat("push has sequence number ", sequence, ", want at least ",
                                                   highest_ - kSize + 1, ": older results are no longer kept")),
        {{"sequence", absl::StrCat(sequence)}});
  }
  if (entry.sequence != 0 && !entry.finished) {
    return WithReason(v1::ERROR_REASON_WINDOW_FULL,
                      absl::ResourceExhaustedError(
                          absl::StrCat("push ", sequence, ": more than ", kSize, " pushes of one worker in flight")),
                      {{"sequence", absl::StrCat(sequence)}});
  }
  highest_ = std::max(highest_, sequence);
  entry = Entry{sequence, false, {}};
  ++accepted_;
  ++accepted_of_incarnation_;
  return Begun{Start::kNew, {}};
}

void PushWindow::Finish(uint64_t incarnation, uint64_t sequence, const PushOutcome& outcome) {
  absl::MutexLock lock(&mutex_);
  // If a newer incarnation has begun meanwhile, nobody needs this result.
  Entry& entry = entries_[sequence % kSize];
  if (incarnation != incarnation_ || entry.sequence != sequence) return;
  entry.finished = true;
  entry.outcome = outcome;
}

void PushWindow::Abandon(uint64_t incarnation, uint64_t sequence) {
  absl::MutexLock lock(&mutex_);
  --accepted_;
  if (incarnation != incarnation_) return;
  --accepted_of_incarnation_;
  Entry& entry = entries_[sequence % kSize];
  if (entry.sequence == sequence) entry = Entry();
}

PushWindow::Count PushWindow::count() const {
  absl::MutexLock lock(&mutex_);
  return {incarnation_, highest_, accepted_, accepted_of_incarnation_};
}

internal::v1::WindowState PushWindow::Save() const {
  absl::MutexLock lock(&mutex_);
  internal::v1::WindowState state;
  state.set_incarnation(incarnation_);
  state.set_highest(highest_);
  state.set_accepted(accepted_);
  state.set_accepted_of_incarnation(accepted_of_incarnation_);
  for (const Entry& entry : entries_) {
    if (!entry.finished) continue;
    internal::v1::WindowState::Answer* answer = state.add_answers();
    answer->set_sequence(entry.sequence);
    answer->set_applied(entry.outcome.applied);
    answer->set_buffered(entry.outcome.buffered);
    answer->set_dropped(entry.outcome.dropped);
    answer->set_max_staleness(entry.outcome.max_staleness);
    answer->set_learning_rate(entry.outcome.learning_rate);
    answer->set_created(entry.outcome.created);
    answer->set_orphaned(entry.outcome.orphaned);
    answer->set_not_admitted(entry.outcome.not_admitted);
    answer->set_evicted(entry.outcome.evicted);
  }
  return state;
}

void PushWindow::Restore(const internal::v1::WindowState& state) {
  absl::MutexLock lock(&mutex_);
  incarnation_ = state.incarnation();
  highest_ = state.highest();
  accepted_ = state.accepted();
  accepted_of_incarnation_ = state.accepted_of_incarnation();
  entries_.assign(incarnation_ == 0 ? 0 : kSize, Entry());
  for (const internal::v1::WindowState::Answer& answer : state.answers()) {
    PushOutcome outcome;
    outcome.applied = answer.applied();
    outcome.buffered = answer.buffered();
    outcome.dropped = answer.dropped();
    outcome.max_staleness = answer.max_staleness();
    outcome.learning_rate = answer.learning_rate();
    outcome.created = answer.created();
    outcome.orphaned = answer.orphaned();
    outcome.not_admitted = answer.not_admitted();
    outcome.evicted = answer.evicted();
    if (!entries_.empty()) entries_[answer.sequence() % kSize] = {answer.sequence(), true, outcome};
  }
}

}  // namespace ballast

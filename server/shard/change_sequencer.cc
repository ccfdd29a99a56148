// SPDX-License-Identifier: Apache-2.0
#include "server/shard/change_sequencer.h"

#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"

namespace ballast {

absl::StatusOr<uint64_t> ChangeSequencer::Append(const JournalEntry& entry, absl::FunctionRef<bool()> admit,
                                                 Reserve reserve, Places& places) {
  ShardJournal* const journal = journal_.load();
  if (journal == nullptr) {
    admit();
    return 0;
  }
  places.places_.reserve(entry.parts);
  const absl::StatusOr<uint64_t> written = journal->Append(entry.record, entry.payloads, admit, [&] {
    for (size_t part = 0; part < entry.parts; ++part) places.places_.push_back(reserve(part));
  });
  if (!written.ok()) return written;
  uint64_t seen = position_.load(std::memory_order_relaxed);
  while (seen < *written && !position_.compare_exchange_weak(seen, *written, std::memory_order_relaxed)) {
  }
  return written;
}

absl::Status ChangeSequencer::Record(const JournalEntry& entry) {
  Places places;
  return Append(
             entry, [] { return true; }, [](size_t) { return 0; }, places)
      .status();
}

absl::Status ChangeSequencer::AddWorker(const absl::Status& status, const ChangeSource& source) const {
  return WithSubjects(Annotate(status, absl::StrCat("shard ", shard_, ": worker ", source.worker)),
                      {{"worker", absl::StrCat(source.worker)}});
}

absl::Status ChangeSequencer::CheckIncarnation(const ChangeSource& source) const {
  const absl::Status status = source.window->CheckIncarnation(source.incarnation);
  return status.ok() ? status : AddWorker(status, source);
}

absl::StatusOr<PushOutcome> ChangeSequencer::Push(const ChangeSource& source, uint64_t sequence, Describe describe,
                                                  Reserve reserve, ApplyPush apply) {
  Released released;
  // Declared before the gate is entered, so it runs after the gate is left.
  const absl::Cleanup end_waits = [&] {
    for (WaitList::Ticket ticket : released) waits_->CountDown(ticket, source.worker);
  };
  absl::ReaderMutexLock gate(&gate_);
  absl::StatusOr<PushWindow::Begun> begun = absl::UnknownError("the push window was not consulted");
  // The journal calls this in record order, so no push of an incarnation follows one of a newer incarnation.
  const auto admit = [&] {
    begun = source.window->Begin(source.incarnation, sequence);
    return begun.ok() && begun->start == PushWindow::Start::kNew;
  };
  Places places;
  const absl::StatusOr<uint64_t> position = Append(describe(), admit, reserve, places);
  if (!position.ok()) {
    if (begun.ok()) source.window->Abandon(source.incarnation, sequence);
    return Annotate(position.status(), absl::StrCat("shard ", shard_, ": log"));
  }
  if (!begun.ok()) {
    if (ReasonOf(begun.status()) == v1::ERROR_REASON_STALE_INCARNATION) ++old_incarnation_;
    return AddWorker(begun.status(), source);
  }
  if (begun->start == PushWindow::Start::kDuplicate) {
    begun->outcome.duplicate = true;
    return begun->outcome;
  }
  PushOutcome outcome = apply(places, released);
  outcome.position = *position;
  source.window->Finish(source.incarnation, sequence, outcome);
  return outcome;
}

absl::Status ChangeSequencer::Make(const ChangeSource& source, Describe describe, Reserve reserve, Apply apply) {
  Released released;
  const absl::Cleanup end_waits = [&] {
    for (WaitList::Ticket ticket : released) waits_->CountDown(ticket, source.worker);
  };
  absl::ReaderMutexLock gate(&gate_);
  absl::Status known;
  const auto admit = [&] {
    known = CheckIncarnation(source);
    return known.ok();
  };
  Places places;
  const absl::StatusOr<uint64_t> position = Append(describe(), admit, reserve, places);
  if (!position.ok()) return Annotate(position.status(), absl::StrCat("shard ", shard_, ": log"));
  if (known.ok()) apply(places, released);
  return known;
}

void ChangeSequencer::AwaitDurable(uint64_t position, std::function<void(absl::Status)> done) const {
  ShardJournal* const journal = position > 0 ? journal_.load() : nullptr;
  if (journal == nullptr) return done(absl::OkStatus());
  journal->AwaitDurable(position, std::move(done));
}

void ChangeSequencer::AwaitSynced(uint64_t position, std::function<void(absl::Status)> done) const {
  ShardJournal* const journal = position > 0 ? journal_.load() : nullptr;
  if (journal == nullptr) return done(absl::OkStatus());
  journal->AwaitSynced(position, std::move(done));
}

}  // namespace ballast

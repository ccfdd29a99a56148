// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/concurrency/wait_list.h"
#include "server/shard/push_window.h"
#include "server/shard/shard_record.h"

namespace ballast {

// Owns the order of a shard's changes: the gate that each change passes and the journal that records it. Invariant: a
// change is admitted by its worker's window, recorded and given its places in the order in one step, so a replay of the
// records makes the same changes in the same order. Deliberately does not know what a change does: its parts may be
// slices or any other state that has its own order. Thread safety: all methods may be called from any thread.
class ChangeSequencer {
 public:
  // A change's place in the order of changes at each of its parts; none without a journal.
  class Places {
   public:
    std::optional<uint64_t> operator[](size_t part) const {
      return places_.empty() ? std::nullopt : std::optional<uint64_t>(places_[part]);
    }

   private:
    friend class ChangeSequencer;
    std::vector<uint64_t> places_;
  };

  // Waits that a change releases. They end once it has left the gate, because their callbacks may take long.
  using Released = std::vector<WaitList::Ticket>;

  // The steps of a change, in the order of their calls. All are called inside the gate.
  // Returns the change's record, which is ignored without a journal.
  using Describe = absl::FunctionRef<JournalEntry()>;
  // Reserves and returns the place at one part. Called for each part of the record, in order; must not block.
  using Reserve = absl::FunctionRef<uint64_t(size_t part)>;
  // Applies a change that was admitted and recorded.
  using ApplyPush = absl::FunctionRef<PushOutcome(const Places&, Released&)>;
  using Apply = absl::FunctionRef<void(const Places&, Released&)>;

  // Stops all changes while it exists.
  class ABSL_SCOPED_LOCKABLE AtRest {
   public:
    explicit AtRest(ChangeSequencer& changes) ABSL_EXCLUSIVE_LOCK_FUNCTION(changes.gate_) : lock_(&changes.gate_) {}
    ~AtRest() ABSL_UNLOCK_FUNCTION() {}

   private:
    absl::MutexLock lock_;
  };

  // `shard` is used in messages. `waits` must outlive all calls.
  ChangeSequencer(uint32_t shard, WaitList* waits) : shard_(shard), waits_(waits) {}

  // Makes a change that has a sequence number, once: a duplicate gets the first outcome. PushWindow::Begin's errors;
  // ShardJournal::Append's, after which the same number may be used again.
  absl::StatusOr<PushOutcome> Push(const ChangeSource& source, uint64_t sequence, Describe describe, Reserve reserve,
                                   ApplyPush apply);

  // Makes a change that is harmless to repeat. FAILED_PRECONDITION for an old incarnation; ShardJournal::Append's
  // errors.
  absl::Status Make(const ChangeSource& source, Describe describe, Reserve reserve, Apply apply);

  // FAILED_PRECONDITION for an old incarnation.
  absl::Status CheckIncarnation(const ChangeSource& source) const;

  // Records a change that the caller makes at rest. No effect without a journal.
  absl::Status Record(const JournalEntry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_);

  // Null if changes are not recorded.
  ShardJournal* journal() const { return journal_.load(); }
  void set_journal(ShardJournal* journal) ABSL_EXCLUSIVE_LOCKS_REQUIRED(gate_) { journal_ = journal; }

  // Pushes that were refused because they came from an old incarnation of their worker.
  uint64_t old_incarnation() const { return old_incarnation_.load(std::memory_order_relaxed); }

  // Position of the newest record; 0 if there is none.
  uint64_t position() const { return position_.load(std::memory_order_acquire); }

  // Like the journal's; OK at once without a record. They do not wait for the gate, because a change may be in it for
  // as long as a disk operation takes.
  void AwaitDurable(uint64_t position, std::function<void(absl::Status)> done) const;
  void AwaitSynced(uint64_t position, std::function<void(absl::Status)> done) const;

 private:
  // Returns the record's position; 0 without a journal or if `admit` returned false.
  absl::StatusOr<uint64_t> Append(const JournalEntry& entry, absl::FunctionRef<bool()> admit, Reserve reserve,
                                  Places& places) ABSL_SHARED_LOCKS_REQUIRED(gate_);
  absl::Status AddWorker(const absl::Status& status, const ChangeSource& source) const;

  const uint32_t shard_;
  WaitList* const waits_;
  // Held shared by each change, from its record until it is applied; held exclusively by operations that must not see
  // a change in between. Never held while a checkpoint is read or values are computed.
  absl::Mutex gate_;
  // Written at rest.
  std::atomic<ShardJournal*> journal_{nullptr};
  std::atomic<uint64_t> position_{0};
  std::atomic<uint64_t> old_incarnation_{0};
};

}  // namespace ballast

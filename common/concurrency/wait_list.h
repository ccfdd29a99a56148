// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/concurrency/clock.h"

namespace ballast {

// Owns bounded waits: each ends exactly once, when everything it waits for has arrived, when its deadline passes, or
// when it is ended, and is then removed. Does not know what is waited for. Callbacks run outside the lock, on the
// thread that ended the wait. Thread safety: all methods may be called from any thread.
class WaitList {
 public:
  using Ticket = uint64_t;
  static constexpr Ticket kNoTicket = 0;
  // Rank of the member whose message is the arrival, if it is one's.
  using Cause = std::optional<uint32_t>;
  using Done = std::function<void(absl::Status)>;
  // Called on each arrival; returns whether it was the last one. May still be called when the wait has just ended.
  using Release = std::function<bool(Ticket, Cause)>;
  // Called after a timeout, and for Oldest; returns what the wait is for.
  using Explain = std::function<std::string()>;

  explicit WaitList(const Clock* clock);
  // Ends all remaining waits with CANCELLED.
  ~WaitList();
  WaitList(const WaitList&) = delete;

  Ticket Add(absl::Time deadline, Release release, Explain explain, Done done);

  // Reports an arrival: calls the wait's Release, and ends the wait with OK if it returns true. No effect on a wait
  // that has ended.
  void CountDown(Ticket ticket, Cause cause = std::nullopt);

  void End(Ticket ticket, absl::Status status);
  void EndAll(const absl::Status& status);
  // Ends all waits, also later ones, with `reason`.
  void Close(const absl::Status& reason);

  // Ends the waits whose deadline has passed with DEADLINE_EXCEEDED. The list's own thread calls it in time.
  void Sweep();

  size_t size() const;

  struct Oldest {
    absl::Duration waited;
    std::string reason;
  };
  // Returns the wait that was added first of those that have not ended.
  std::optional<Oldest> oldest() const;

 private:
  struct Wait {
    absl::Time begin;
    absl::Time deadline;
    // Shared with the threads that are currently calling it.
    std::shared_ptr<const Release> release;
    Explain explain;
    Done done;
  };

  Wait TakeLocked(std::map<Ticket, Wait>::iterator wait) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void SweepUntilStopped();

  const Clock* const clock_;
  mutable absl::Mutex mutex_;
  Ticket next_ ABSL_GUARDED_BY(mutex_) = 1;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // OK until Close.
  absl::Status closed_ ABSL_GUARDED_BY(mutex_);
  std::map<Ticket, Wait> waits_ ABSL_GUARDED_BY(mutex_);
  std::set<std::pair<absl::Time, Ticket>> by_deadline_ ABSL_GUARDED_BY(mutex_);
  // When the list's own thread looks next, or before: a deadline after that need not wake it.
  absl::Time looks_at_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  absl::CondVar changed_;
  std::thread sweeper_;
};

}  // namespace ballast

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/concurrency/wait_list.h"

namespace ballast {

// Owns the ticket of a call's wait, so that the caller may cancel at any time: before the wait begins, during it, and
// after it. Whoever begins the wait keeps this alive until then, because the call may end first. Thread safety: all
// methods may be called from any thread.
class CancellableWait {
 public:
  // `cancel` ends a wait; it must ignore one that has ended.
  explicit CancellableWait(std::function<void(WaitList::Ticket)> cancel) : cancel_(std::move(cancel)) {}

  // Call once the wait has begun; kNoTicket: it has already ended.
  void Began(WaitList::Ticket ticket) {
    bool cancelled = false;
    {
      absl::MutexLock lock(&mutex_);
      ticket_ = ticket;
      cancelled = cancelled_;
    }
    if (cancelled && ticket != WaitList::kNoTicket) cancel_(ticket);
  }

  void Cancel() {
    WaitList::Ticket ticket = WaitList::kNoTicket;
    {
      absl::MutexLock lock(&mutex_);
      cancelled_ = true;
      ticket = ticket_;
    }
    if (ticket != WaitList::kNoTicket) cancel_(ticket);
  }

 private:
  const std::function<void(WaitList::Ticket)> cancel_;
  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  WaitList::Ticket ticket_ ABSL_GUARDED_BY(mutex_) = WaitList::kNoTicket;
};

}  // namespace ballast

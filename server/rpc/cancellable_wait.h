// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/concurrency/wait_list.h"

namespace ballast {

// The wait that a call has begun, for the caller to go away at any time: before it has begun, while it lasts, and after
// it ended. Shared by the call and by whoever begins the wait, because the call may be gone before that returns.
// Thread safety: all methods may be called from any thread.
class CancellableWait {
 public:
  // `cancel` ends a wait; it does nothing for one that has ended.
  explicit CancellableWait(std::function<void(WaitList::Ticket)> cancel) : cancel_(std::move(cancel)) {}

  // The wait has begun; kNoTicket: it has ended already.
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

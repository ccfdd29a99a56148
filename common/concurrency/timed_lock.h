// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace ballast {

// Holds a mutex while it exists, and knows how long it waited for it. Reads the clock only if it has to wait.
// Thread safety: confined to one thread.
class ABSL_SCOPED_LOCKABLE TimedLock {
 public:
  explicit TimedLock(absl::Mutex* mutex) ABSL_EXCLUSIVE_LOCK_FUNCTION(mutex) ABSL_NO_THREAD_SAFETY_ANALYSIS
      : mutex_(mutex) {
    if (mutex_->TryLock()) return;
    const absl::Time began = absl::Now();
    mutex_->Lock();
    // The machine's clock may have been set back.
    waited_ = std::max(absl::Now() - began, absl::ZeroDuration());
  }
  ~TimedLock() ABSL_UNLOCK_FUNCTION() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex_->Unlock(); }
  TimedLock(const TimedLock&) = delete;

  absl::Duration waited() const { return waited_; }

 private:
  absl::Mutex* const mutex_;
  absl::Duration waited_;
};

}  // namespace ballast

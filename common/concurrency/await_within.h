// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace ballast {

// Like mutex.AwaitWithTimeout(condition, timeout), which calls the kernel even if the timeout is zero. Releases `mutex`
// while it waits. Returns whether the condition is true.
inline bool AwaitWithin(absl::Mutex& mutex, const absl::Condition& condition, absl::Duration timeout)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
  return timeout <= absl::ZeroDuration() ? condition.Eval() : mutex.AwaitWithTimeout(condition, timeout);
}

}  // namespace ballast

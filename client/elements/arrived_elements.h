// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <deque>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/concurrency/await_within.h"

namespace ballast {

// Owns the list of a tensor's parts whose values have come, in one call that may still wait for others. The client adds
// a part once its values are in place, and changes them no more in that call. Thread safety: all methods may be called
// from any thread.
class ArrivedElements {
 public:
  struct Part {
    size_t offset = 0;
    size_t elements = 0;
  };

  void Add(Part part) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    parts_.push_back(part);
  }

  // Returns the oldest part that was not taken yet; nullopt if none comes within `timeout`.
  std::optional<Part> Take(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    const auto any = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !parts_.empty(); };
    if (!AwaitWithin(mutex_, absl::Condition(&any), timeout)) return std::nullopt;
    const Part part = parts_.front();
    parts_.pop_front();
    return part;
  }

 private:
  absl::Mutex mutex_;
  std::deque<Part> parts_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast

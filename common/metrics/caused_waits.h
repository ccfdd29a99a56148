// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ballast/v1/tensor.pb.h"

namespace ballast {

// Owns the time that pulls waited for each worker: charges a wait to the worker whose push ended it, which is the last
// that the pull waited for. Invariant: no moment is charged twice, however many pulls waited. Thread safety: all
// methods may be called from any thread.
class CausedWaits {
 public:
  // A pull of another worker waited from `begin` until a push of `worker` ended the wait at `end`.
  void Charge(uint32_t worker, absl::Time begin, absl::Time end);

  // Returns what each worker has caused, by rank; without workers that caused nothing.
  std::vector<v1::CausedWait> List() const;

 private:
  mutable absl::Mutex mutex_;
  std::map<uint32_t, absl::Duration> waits_ ABSL_GUARDED_BY(mutex_);
  // The end of the newest wait that was charged.
  absl::Time charged_until_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
};

}  // namespace ballast

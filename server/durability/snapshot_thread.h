// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace ballast {

// Owns a thread that takes a snapshot when one is due, and tries again after a failure. Deliberately does not know
// when one is due or what it contains. Thread safety: all methods may be called from any thread.
class SnapshotThread {
 public:
  struct Options {
    // Delay before the first retry; it doubles with each failure, up to `longest_retry`.
    absl::Duration first_retry = absl::Seconds(1);
    absl::Duration longest_retry = absl::Minutes(1);
    // Called from the thread; `on_failure` before the delay.
    std::function<absl::Status()> take;
    std::function<void(const absl::Status& status, absl::Duration retry)> on_failure;
  };

  explicit SnapshotThread(Options options);
  // Waits for the current snapshot, but not for a retry.
  ~SnapshotThread();
  SnapshotThread(const SnapshotThread&) = delete;

  // Requests a snapshot. Does not shorten the delay before a retry.
  void Request();

  uint64_t failures() const;

 private:
  void Run();
  // Returns false once this is stopping.
  bool AwaitDue();

  const Options options_;
  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool due_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t failures_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;
};

}  // namespace ballast

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "ballast/internal/v1/storage.pb.h"

namespace ballast {

// Result of a push, summed over its slices.
struct PushOutcome {
  uint32_t applied = 0;
  uint32_t buffered = 0;
  uint32_t dropped = 0;
  uint64_t max_staleness = 0;
  float learning_rate = 0;
  // Results of a push of rows: see ballast.v1.RowsOutcome.
  uint64_t created = 0;
  uint64_t orphaned = 0;
  uint64_t not_admitted = 0;
  uint64_t evicted = 0;
  bool duplicate = false;
  // Position of the push's record; 0 if none was written.
  uint64_t position = 0;
};

// Owns one worker's recent pushes and their results, so that a retry is safe. Invariant: a sequence number of an
// incarnation begins at most once. Deliberately does not know what a push does.
// Thread safety: all methods may be called from any thread.
class PushWindow {
 public:
  // Number of sequence numbers whose results are kept.
  static constexpr uint64_t kSize = 1024;

  enum class Start { kNew, kDuplicate };
  struct Begun {
    Start start = Start::kNew;
    // The result; of a duplicate, that of the first attempt.
    PushOutcome outcome;
  };

  // kNew: the caller applies the push and calls Finish. FAILED_PRECONDITION for an older incarnation or for a
  // sequence number whose result is no longer kept; UNAVAILABLE (retry) while the first attempt is being applied;
  // RESOURCE_EXHAUSTED if kSize pushes are in flight.
  absl::StatusOr<Begun> Begin(uint64_t incarnation, uint64_t sequence);

  // Stores the result of a push for which Begin returned kNew.
  void Finish(uint64_t incarnation, uint64_t sequence, const PushOutcome& outcome);

  // Undoes a Begin that returned kNew.
  void Abandon(uint64_t incarnation, uint64_t sequence);

  // Pushes begun and not abandoned, in all incarnations, and the newest incarnation's highest sequence number.
  struct Count {
    uint64_t incarnation = 0;
    uint64_t highest = 0;
    uint64_t accepted = 0;
    uint64_t accepted_of_incarnation = 0;
  };
  Count count() const;

  // Must not be called while a push is between Begin and Finish.
  internal::v1::WindowState Save() const;
  void Restore(const internal::v1::WindowState& state);

  // FAILED_PRECONDITION for an incarnation older than the newest that Begin has seen.
  absl::Status CheckIncarnation(uint64_t incarnation) const;

 private:
  struct Entry {
    uint64_t sequence = 0;
    bool finished = false;
    PushOutcome outcome;
  };

  absl::Status CheckIncarnationLocked(uint64_t incarnation) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  uint64_t incarnation_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t highest_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t accepted_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t accepted_of_incarnation_ ABSL_GUARDED_BY(mutex_) = 0;
  // Indexed by sequence number modulo kSize; empty until the first push.
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

// The worker that makes a change, and its window.
struct ChangeSource {
  uint32_t worker = 0;
  uint64_t incarnation = 0;
  PushWindow* window = nullptr;
};

}  // namespace ballast

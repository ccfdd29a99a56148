// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "ballast/internal/v1/storage.pb.h"

namespace ballast {

// What became of a push, slice by slice summed up.
struct PushOutcome {
  uint32_t applied = 0;
  uint32_t buffered = 0;
  uint32_t dropped = 0;
  uint64_t max_staleness = 0;
  float learning_rate = 0;
  bool duplicate = false;
  // Of its record, where one was written.
  uint64_t position = 0;
};

// One worker's recent pushes and their answers: what makes a retry harmless.
// Invariant: a sequence number of an incarnation is begun at most once. Knows nothing of what a push does.
// Thread safety: all methods may be called from any thread.
class PushWindow {
 public:
  // How many sequence numbers back an answer is remembered.
  static constexpr uint64_t kSize = 1024;

  enum class Start { kNew, kDuplicate };
  struct Begun {
    Start start = Start::kNew;
    // The first answer, of a duplicate.
    PushOutcome outcome;
  };

  // kNew: the caller applies the push and calls Finish. FAILED_PRECONDITION for an older incarnation or a sequence
  // number that is no longer remembered, UNAVAILABLE (retry) while the first attempt is being applied.
  absl::StatusOr<Begun> Begin(uint64_t incarnation, uint64_t sequence);

  // Ends what Begin answered kNew to.
  void Finish(uint64_t incarnation, uint64_t sequence, const PushOutcome& outcome);

  // Ends it as if it had not begun.
  void Abandon(uint64_t incarnation, uint64_t sequence);

  // How many pushes were begun and not abandoned, in all incarnations, and how far the newest one's numbers go.
  struct Count {
    uint64_t incarnation = 0;
    uint64_t highest = 0;
    uint64_t accepted = 0;
    // Of the newest incarnation.
    uint64_t accepted_of_incarnation = 0;
  };
  Count count() const;

  // While no push is between Begin and Finish.
  internal::v1::WindowState Save() const;
  void Restore(const internal::v1::WindowState& state);

  // FAILED_PRECONDITION for an incarnation older than the newest that Begin has seen. Changes nothing.
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
  // By sequence number modulo kSize; empty until the first push.
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast

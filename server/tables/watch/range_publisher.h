// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/tables/range/table_range.h"
#include "server/tables/watch/delta_log.h"
#include "server/tables/watch/row_delta.h"

namespace ballast {

// Owns what watchers have of one range: its position, which counts its deltas, and the chains that lead to it. Each
// time that the range is sent whole, a chain begins there; all chains go on with the same deltas. Invariant: the
// range's changes are followed while there is a chain, and only then. Deliberately does not know the watchers. Thread
// safety: all methods may be called from any thread.
class RangePublisher {
 public:
  // The pointers must outlive this.
  RangePublisher(uint32_t number, TableRange* range, const RowDeltaEncoder* encoder, DeltaLog* log)
      : number_(number), range_(range), encoder_(encoder), log_(log) {}
  ~RangePublisher();
  RangePublisher(const RangePublisher&) = delete;

  // Appends a delta of what has changed since the last one, if anything has, and returns its bytes. Forgets chains that
  // nobody has used since `unused_since`.
  uint64_t Publish(absl::Time now, absl::Time unused_since);

  // The rows as they are now, to be sent in place of what a watcher has.
  struct Whole {
    std::shared_ptr<const PublishedDelta> delta;
    // The chain on which the watcher goes on.
    uint32_t chain = 0;
  };
  // Publishes what has changed, then copies all rows, and begins a chain that is in use once.
  Whole SendWhole(absl::Time now);
  // Copies all rows for a watcher that does not go on.
  Whole SendLast();

  // Uses the chain once more on which a watcher with this position goes on; 0 if there is none. `found`: a chain on
  // which a retained delta leads on from the position, or 0.
  uint32_t Join(const WatchedPosition& after, uint32_t found);
  // Ends one use of a chain.
  void Leave(uint32_t chain, absl::Time now);

  // Bytes that SendWhole copies, about.
  uint64_t WholeBytes() const { return range_->rows() * encoder_->RowBytes(); }

 private:
  struct Chain {
    uint32_t id = 0;
    uint64_t value = 0;
    uint32_t uses = 0;
    // Time of the last Leave.
    absl::Time left;
  };

  uint64_t PublishLocked(const RowWeights& changes, absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Whole WholeLocked(const RowWeights& rows) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint32_t number_;
  TableRange* const range_;
  const RowDeltaEncoder* const encoder_;
  DeltaLog* const log_;

  absl::Mutex mutex_;
  // Confined to the range's lock while the range is followed.
  RangeChanges changes_;
  // 1 before the first delta, because 0 says that nothing is known.
  uint64_t position_ ABSL_GUARDED_BY(mutex_) = 1;
  uint32_t next_chain_ ABSL_GUARDED_BY(mutex_) = 1;
  std::vector<Chain> chains_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast

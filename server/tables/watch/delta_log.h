// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/tables/watch/row_delta.h"

namespace ballast {

// A range as a watcher has it: what was the last delta, and its chain.
struct WatchedPosition {
  uint64_t position = 0;
  uint64_t chain = 0;
};

// Owns the recent deltas of a table, in the order of their publication, within a limit of memory and of age. Invariant:
// of each range it has every delta from some position on. Deliberately does not know who reads them. Thread safety: all
// methods may be called from any thread; the deltas of one range are appended one after the other.
class DeltaLog {
 public:
  // For the ranges [first, first + count). `max_bytes`: see Trim.
  DeltaLog(uint32_t first, uint32_t count, uint64_t max_bytes) : first_(first), max_bytes_(max_bytes), reach_(count) {}

  void Append(std::shared_ptr<const PublishedDelta> delta, absl::Time now);

  // Forgets the oldest deltas: those that were published before `since`, and those above the limit. The limit holds for
  // later deltas, too.
  void Trim(uint64_t max_bytes, absl::Time since);

  struct Deltas {
    std::vector<std::shared_ptr<const PublishedDelta>> deltas;
    // Number to read from the next time.
    uint64_t next = 0;
    // Deltas between the two are forgotten.
    bool lost = false;
  };
  // Returns the deltas from number `from` on, those that exceed `max_bytes` left out, but at least one if there is one.
  Deltas Read(uint64_t from, size_t max_bytes) const;

  // Numbers of the oldest delta and of the next one.
  uint64_t begin() const;
  uint64_t end() const;

  // Returns, by range, the position from which on no delta is missing.
  std::vector<uint64_t> reach() const;

  // Returns the chains, by range, that lead on from those positions.
  absl::flat_hash_map<uint32_t, uint32_t> FindChains(
      const absl::flat_hash_map<uint32_t, WatchedPosition>& positions) const;

  uint64_t bytes() const;

 private:
  struct Entry {
    std::shared_ptr<const PublishedDelta> delta;
    absl::Time published;
  };

  void PopLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint32_t first_;
  mutable absl::Mutex mutex_;
  std::deque<Entry> entries_ ABSL_GUARDED_BY(mutex_);
  // Number of the first entry.
  uint64_t begin_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t max_bytes_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> reach_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast

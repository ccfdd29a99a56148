// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/concurrency/clock.h"
#include "server/memory/byte_budget.h"
#include "server/tables/watch/table_publisher.h"

namespace ballast {

class RowWatch;

// Owns what is published of a shard's tables, and the thread that publishes it a few times per second while there are
// watchers. Invariant: a table that nobody has watched for the retention time is not followed, so its pushes pay
// nothing. Deliberately does not know how watchers are reached. Thread safety: all methods may be called from any
// thread; the destructor comes after those of all watches.
class RowPublishers {
 public:
  struct Options {
    // Time from a change until it is published, about. Infinite: only Publish publishes.
    absl::Duration period = absl::Milliseconds(200);
    // A watcher that returns within this time goes on, if the deltas are still there.
    absl::Duration retention = absl::Seconds(60);
    // Limits on the memory of recent deltas, and of ranges that are being sent whole.
    uint64_t max_retained_bytes = uint64_t{64} << 20;
    uint64_t max_copied_bytes = uint64_t{64} << 20;
    size_t max_watchers = 64;
    const Clock* clock = Clock::Real();
  };

  explicit RowPublishers(const Options& options);
  ~RowPublishers();
  RowPublishers(const RowPublishers&) = delete;

  struct Request {
    struct Table {
      WatchableTable table;
      // Ranges that the watcher has, by number.
      absl::flat_hash_map<uint32_t, WatchedPosition> after;
    };
    std::vector<Table> tables;
    v1::Encoding encoding = v1::ENCODING_FP32;
    bool once = false;
    // Called after each round, from the thread that publishes, without locks held: also for a moment after the watch
    // has ended. Must not block.
    std::function<void()> wake;
  };
  // The tables must outlive this. RESOURCE_EXHAUSTED if there are too many watchers; INVALID_ARGUMENT for an encoding
  // that rows do not have.
  absl::StatusOr<std::unique_ptr<RowWatch>> Watch(Request request);

  // Publishes what has changed, and wakes the watchers.
  void Publish();

  // Number of watchers, and of tables that are published, in each encoding.
  size_t watchers() const;
  size_t tables() const;

 private:
  friend class RowWatch;
  // A table's id and the encoding.
  using Key = std::pair<uint32_t, v1::Encoding>;
  struct Published {
    // Shared with the watches.
    std::shared_ptr<TablePublisher> publisher;
    size_t watches = 0;
    // Time of the end of the last watch that may return.
    absl::Time left = absl::InfinitePast();
  };

  absl::StatusOr<std::shared_ptr<TablePublisher>> UseLocked(const WatchableTable& table, v1::Encoding encoding)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Leave(const RowWatch& watch);
  void Run();

  const Options options_;
  ByteBudget copies_;
  // Held while one thread publishes.
  absl::Mutex publishing_ ABSL_ACQUIRED_BEFORE(mutex_);
  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<Key, Published> published_ ABSL_GUARDED_BY(mutex_);
  // By watch.
  std::map<const RowWatch*, std::shared_ptr<const std::function<void()>>> wakes_ ABSL_GUARDED_BY(mutex_);
  // Watchers, including those that are about to be in wakes_.
  size_t watchers_ ABSL_GUARDED_BY(mutex_) = 0;
  // Starts with the first watch.
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

// One watcher: its places in one or more tables. Thread safety: none, except that the publishers go on meanwhile.
class RowWatch {
 public:
  ~RowWatch();
  RowWatch(const RowWatch&) = delete;

  // Returns what is to be sent next, about `max_bytes`; empty if there is nothing until the next round.
  std::vector<EncodedDelta> Next(size_t max_bytes);

  // See TableWatch.
  bool done() const;
  uint64_t fallen_behind() const;

 private:
  friend class RowPublishers;
  RowWatch(RowPublishers* publishers, v1::Encoding encoding, bool once)
      : publishers_(publishers), encoding_(encoding), once_(once) {}

  RowPublishers* const publishers_;
  const v1::Encoding encoding_;
  const bool once_;
  std::vector<uint32_t> table_ids_;
  std::vector<std::unique_ptr<TableWatch>> tables_;
  // The table that is asked first the next time.
  size_t first_ = 0;
};

}  // namespace ballast

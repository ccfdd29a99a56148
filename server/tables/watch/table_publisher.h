// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/memory/byte_budget.h"
#include "server/tables/range/table_range.h"
#include "server/tables/watch/delta_log.h"
#include "server/tables/watch/range_publisher.h"
#include "server/tables/watch/row_delta.h"

namespace ballast {

// A table's ranges at one shard.
struct WatchableTable {
  uint32_t id = 0;
  uint32_t dim = 0;
  // Number of the first range; the others follow.
  uint32_t first_range = 0;
  std::vector<TableRange*> ranges;
  // Removes the rows of a range that have expired, by its index here; empty if rows do not expire.
  std::function<void(uint32_t)> sweep = {};
};

// Owns what is published of one table in one encoding, for all its watchers together: the position of each range and
// the recent deltas. Deliberately does not know the watchers. Thread safety: all methods may be called from any thread,
// Publish by one at a time.
class TablePublisher {
 public:
  // The ranges must outlive this. `max_retained`: bytes of recent deltas, until the first round. INVALID_ARGUMENT for
  // an encoding that rows do not have.
  static absl::StatusOr<std::unique_ptr<TablePublisher>> Make(const WatchableTable& table, v1::Encoding encoding,
                                                              uint64_t max_retained);

  struct Round {
    // Memory for recent deltas, and the time before which deltas and unused chains are forgotten.
    uint64_t max_retained_bytes = 0;
    absl::Time now, since;
    // The round ends after about that many bytes; the next one goes on.
    uint64_t max_published_bytes = 0;
  };
  // Publishes what has changed. True if all ranges were visited.
  bool Publish(const Round& round);

  // `number` is below range_count().
  RangePublisher& range(uint32_t number) { return *ranges_[number]; }
  // Removes the rows of a range that have expired.
  void Sweep(uint32_t number) const {
    if (sweep_) sweep_(number);
  }
  uint32_t range_count() const { return static_cast<uint32_t>(ranges_.size()); }
  uint32_t first_range() const { return first_range_; }
  uint32_t table_id() const { return table_id_; }
  const DeltaLog& log() const { return log_; }
  const RowDeltaEncoder& encoder() const { return encoder_; }

 private:
  TablePublisher(const WatchableTable& table, RowDeltaEncoder encoder, uint64_t max_retained);

  const uint32_t table_id_;
  const uint32_t first_range_;
  const RowDeltaEncoder encoder_;
  const std::function<void(uint32_t)> sweep_;
  DeltaLog log_;
  std::vector<std::unique_ptr<RangePublisher>> ranges_;
  // The ranges at which the next round begins, and at which it begins to sweep. Confined to the thread that publishes.
  uint32_t next_ = 0, next_swept_ = 0;
};

// A watcher's place in one table: which ranges it still has to be sent whole, and up to which delta it has the others.
// Deliberately does not know how it is sent. Thread safety: none; watchers of the same table are independent.
class TableWatch {
 public:
  struct Start {
    // By range; all other ranges are sent whole.
    absl::flat_hash_map<uint32_t, WatchedPosition> after;
    // Ends once each range was sent as it is now or later.
    bool once = false;
  };

  // Shares the publisher with other watchers, and keeps it. `copies` limits the memory of ranges that are sent whole;
  // it must outlive this.
  TableWatch(std::shared_ptr<TablePublisher> publisher, Start start, ByteBudget* copies, absl::Time now);
  ~TableWatch();
  TableWatch(const TableWatch&) = delete;

  // Returns what is to be sent next, about `max_bytes`; empty if there is nothing now.
  std::vector<EncodedDelta> Next(size_t max_bytes, absl::Time now);

  // True once everything was returned that the watcher is to be sent; only with `once`.
  bool done() const { return once_ && missing_ == 0 && next_delta_ >= end_; }

  // Ranges that were sent whole because the watcher had fallen behind.
  uint64_t fallen_behind() const { return fallen_behind_; }

 private:
  struct Range {
    uint64_t position = 0;
    // 0: goes on with no chain.
    uint32_t chain = 0;
    // Must be sent whole.
    bool missing = true;
  };

  void ReadDeltas(size_t max_bytes, absl::Time now, std::vector<EncodedDelta>& to);
  void CopyRanges(size_t max_bytes, absl::Time now, std::vector<EncodedDelta>& to);
  // Ends the range's chain, so that it is sent whole.
  void Lose(uint32_t range, absl::Time now);

  // Shared with the other watchers of the table; the last one's end lets it go.
  const std::shared_ptr<TablePublisher> publisher_;
  ByteBudget* const copies_;
  const bool once_;
  std::vector<Range> ranges_;
  // Number of ranges that are missing, and where to look for the next of them.
  size_t missing_ = 0;
  uint32_t next_missing_ = 0;
  // Number of the next delta in the publisher's log, and of the one at which a watch with `once` ends.
  uint64_t next_delta_ = 0, end_ = 0;
  uint64_t fallen_behind_ = 0;
  // Time of the last call.
  absl::Time left_;
};

}  // namespace ballast

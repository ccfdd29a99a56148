// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ballast/v1/table.pb.h"
#include "client/rows/row_delta_reader.h"
#include "common/rpc/credentials.h"
#include "common/tensors/shard_map.h"

namespace ballast {

class CoordinatorLink;

struct RowWatcherOptions {
  // See ClientOptions: the coordinator's address, or those of the shards by rank; an empty job: the servers' only
  // job.
  std::string coordinator;
  std::vector<std::string> shards;
  Credentials credentials;
  std::string job;

  // Tables to watch, as they were declared.
  std::vector<v1::TableSpec> tables;
  // Encoding of the rows in transit: fp32, fp16 or bf16.
  v1::Encoding encoding = v1::ENCODING_FP32;
  // Ends once each range was received, for exports.
  bool once = false;
  // Called with each update, from one thread per shard, without locks held; those of a range come in order. A slow call
  // slows down its shard's updates alone.
  std::function<void(RangeUpdate)> on_update;

  absl::Duration connect_timeout = absl::Seconds(20);
  // A shard that sends nothing for this long is lost; servers send a sign of life every 5 s.
  absl::Duration silence = absl::Seconds(15);
  // A shard is called again until this long after the first of several failures.
  absl::Duration retry_timeout = absl::Minutes(10);
};

// Owns the streams of rows from all shards that have them, and keeps them up: it connects again, and goes on where a
// stream ended. Invariant: updates that reach the user follow each other without gap, repetition or damage; a range of
// which a delta was lost is asked for whole. Deliberately does not keep the rows. Thread safety: all methods may be
// called from any thread; the destructor must not be called from on_update. It cancels the streams.
class RowWatcher {
 public:
  // Finds the shards and begins to watch; blocks. UNAVAILABLE or DEADLINE_EXCEEDED if there is no coordinator;
  // NOT_FOUND for a table that is not in its map; INVALID_ARGUMENT.
  static absl::StatusOr<std::unique_ptr<RowWatcher>> Start(RowWatcherOptions options);
  ~RowWatcher();
  RowWatcher(const RowWatcher&) = delete;

  // Blocks until each range was received at least once; with `once`, until the streams have ended, too. The error of a
  // shard that is not called again; DEADLINE_EXCEEDED, with the number of ranges that are missing, after `timeout`.
  absl::Status AwaitComplete(absl::Duration timeout);

  // OK, or the error of a shard that is not called again; its rows stay as they are.
  absl::Status status() const;

  // OK while rows arrive from every shard; otherwise the error of one that does not answer, from which no newer rows
  // come until it is called with success again.
  absl::Status condition() const;

  // Numbers since the start, of all shards.
  struct Counts {
    uint64_t updates = 0;
    // Ranges received whole.
    uint64_t wholes = 0;
    // Deltas that did not follow on the last one or were damaged; each range was asked for whole.
    uint64_t rejected = 0;
    // Streams after the first of each shard.
    uint64_t reconnects = 0;
  };
  Counts counts() const;

 private:
  class Shard;

  explicit RowWatcher(RowWatcherOptions options);
  absl::StatusOr<ShardMap> Map();
  // Returns the shard's address, which may have changed.
  absl::StatusOr<std::string> AddressOf(uint32_t rank);
  void OnReceived(uint32_t ranges);
  void OnEnd(const absl::Status& status);

  const RowWatcherOptions options_;
  // Null if the options name the shards. Set by Start, then constant.
  std::unique_ptr<CoordinatorLink> coordinator_;

  struct AtomicCounts {
    std::atomic<uint64_t> updates{0}, wholes{0}, rejected{0}, reconnects{0};
  };
  AtomicCounts counts_;
  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // The first final error.
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  // Ranges that were not received yet, and shards that are watched still.
  uint64_t missing_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;

  // Declared last, because their threads use the other fields. Constant after Start.
  std::vector<std::unique_ptr<Shard>> shards_;
};

}  // namespace ballast

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/tensors/shard_map.h"

namespace ballast {

// Gets a job's newer shard maps on its own thread and hands them to its user: each new map if shards may move,
// otherwise one map per request. Does not know the coordinator, channels or tensors. Thread safety: all methods may be
// called from any thread, except that Join and the destructor must not be called from a function in Calls.
class ShardMapFollower {
 public:
  // Called from the follower's thread, without locks held, after the first OnMapUsed or Refresh.
  struct Calls {
    // Returns the current map.
    std::function<absl::StatusOr<ShardMap>()> get;
    // Returns the map once its epoch is above `newer_than`, or the current map after `wait`.
    std::function<absl::StatusOr<ShardMap>(uint64_t newer_than, absl::Duration wait)> await;
    // Uses the map. An error ends the following.
    std::function<absl::Status(ShardMap map)> use;
    // Called at the end with the message of that error.
    std::function<void(const std::string& reason)> fail;
  };

  ShardMapFollower(bool shards_move, Calls calls);
  // Stops and joins.
  ~ShardMapFollower();

  // Records the epoch of the map that the user uses. Moves are followed from the first one.
  void OnMapUsed(uint64_t epoch);
  // Requests the current map, because a shard does not own a slice that the map assigns to it. For shards that do not
  // move; never blocks.
  void Refresh();

  // Ends the following; never blocks. The user ends a `get` or `await` in progress.
  void Stop();
  // Blocks until the thread has ended; call it after Stop, from one thread.
  void Join();

 private:
  void FollowMoves();
  void RefreshOnRequest();
  // Returns false if the map cannot be used.
  bool Use(ShardMap map) const;

  const Calls calls_;
  absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  bool requested_ ABSL_GUARDED_BY(mutex_) = false;
  // Epoch of the map in use; empty before the first.
  std::optional<uint64_t> epoch_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace ballast

// SPDX-License-Identifier: Apache-2.0
#include "client/shard_map_follower.h"

#include <algorithm>
#include <utility>

#include "common/concurrency/named_thread.h"

namespace ballast {
namespace {

// Timeout of one call that waits for a newer map, and the pauses after one that failed or returned too early.
constexpr absl::Duration kMapWait = absl::Seconds(20);
constexpr absl::Duration kFirstMapPause = absl::Milliseconds(100);
constexpr absl::Duration kMaxMapPause = absl::Seconds(1);

}  // namespace

ShardMapFollower::ShardMapFollower(bool shards_move, Calls calls)
    : calls_(std::move(calls)),
      thread_(NamedThread("shard map", [this, shards_move] { shards_move ? FollowMoves() : RefreshOnRequest(); })) {}

ShardMapFollower::~ShardMapFollower() {
  Stop();
  Join();
}

void ShardMapFollower::OnMapUsed(uint64_t epoch) {
  absl::MutexLock lock(&mutex_);
  epoch_ = epoch;
}

void ShardMapFollower::Refresh() {
  absl::MutexLock lock(&mutex_);
  requested_ = true;
}

void ShardMapFollower::Stop() {
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
}

void ShardMapFollower::Join() {
  if (thread_.joinable()) thread_.join();
}

bool ShardMapFollower::Use(ShardMap map) const {
  const absl::Status status = calls_.use(std::move(map));
  if (!status.ok()) calls_.fail(std::string(status.message()));
  return status.ok();
}

void ShardMapFollower::RefreshOnRequest() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      const auto wanted = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopped_ || requested_; };
      mutex_.Await(absl::Condition(&wanted));
      if (stopped_) return;
      requested_ = false;
    }
    absl::StatusOr<ShardMap> map = calls_.get();
    // After an error, the retried call of the shard requests the map again.
    if (map.ok() && !Use(*std::move(map))) return;
  }
}

void ShardMapFollower::FollowMoves() {
  absl::Duration pause;
  while (true) {
    uint64_t epoch = 0;
    {
      absl::MutexLock lock(&mutex_);
      // No shard is reached, so none can move, before the first map is used.
      const auto used = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopped_ || epoch_.has_value(); };
      mutex_.Await(absl::Condition(&used));
      mutex_.AwaitWithTimeout(absl::Condition(&stopped_), pause);
      if (stopped_) return;
      epoch = *epoch_;
    }
    const absl::Time asked = absl::Now();
    absl::StatusOr<ShardMap> map = calls_.await(epoch, kMapWait);
    const bool newer = map.ok() && map->epoch() > epoch;
    if (newer || (map.ok() && absl::Now() - asked > kMapWait / 2)) {
      pause = absl::ZeroDuration();
    } else {
      pause = std::clamp(2 * pause, kFirstMapPause, kMaxMapPause);
    }
    if (newer && !Use(*std::move(map))) return;
  }
}

}  // namespace ballast

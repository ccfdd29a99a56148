// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ballast/internal/v1/standby_service.pb.h"
#include "server/replication/shard_loader.h"
#include "server/shard/parameter_shard.h"

namespace ballast {

// A standby's side of the stream: makes its own shard equal to the server's, change by change, until it takes over.
// Invariant: from the moment in which it takes over it takes nothing more from the stream, so that a server that was
// given up and lives can have nothing acknowledged. No lock is held while a change is made, so that heartbeats, which
// ask lost() and order the takeover, wait for none. Knows nothing of gRPC.
// Thread safety: all methods may be called from any thread, Take by one at a time.
class StandbyReceiver {
 public:
  // The shard is new, and nobody else's to change until TakeOver. `on_lost` is called when the stream has ended.
  StandbyReceiver(uint32_t rank, ParameterShard* shard, std::function<void()> on_lost)
      : rank_(rank), on_lost_(std::move(on_lost)), loader_(rank, shard) {}

  // This process is a standby, of that incarnation.
  void Begin(uint64_t standby);

  // The first message of a stream. FAILED_PRECONDITION where it is not for this standby, or not the first stream.
  absl::Status Open(const internal::v1::ReplicateRequest& first);

  // The next message. Answers how far the standby is. After an error the stream is of no use. FAILED_PRECONDITION once
  // it has taken over.
  absl::StatusOr<internal::v1::ReplicateResponse> Take(const internal::v1::ReplicateRequest& part);

  // The stream has ended.
  void Close();
  // Whether it has, or its server, which says something all the time, has not been heard of for too long.
  bool lost() const;

  // It is the server from now on: takes nothing more, and calls `done` once the change that is being made, if any is,
  // has been made. FAILED_PRECONDITION where it never had the whole shard.
  void TakeOver(std::function<void(absl::Status)> done);

 private:
  enum class Stage { kIdle, kFollowing, kLost, kServer };

  absl::Status ApplyMessage(const internal::v1::ReplicateRequest& part);

  const uint32_t rank_;
  const std::function<void()> on_lost_;
  // Of the thread that takes; the parts so far of the record that comes.
  ShardLoader loader_;
  std::string parts_;
  internal::v1::ReplicateResponse response_;
  mutable absl::Mutex mutex_;
  uint64_t standby_ ABSL_GUARDED_BY(mutex_) = 0;
  Stage stage_ ABSL_GUARDED_BY(mutex_) = Stage::kIdle;
  bool whole_ ABSL_GUARDED_BY(mutex_) = false;
  // A change is being made, and who is to be told when it was.
  bool taking_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void(absl::Status)> taken_over_ ABSL_GUARDED_BY(mutex_);
  absl::Time heard_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
};

}  // namespace ballast

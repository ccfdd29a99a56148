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
#include "server/parameter_shard.h"
#include "server/replica/shard_stream.h"

namespace ballast {

// A standby's side of the stream: makes its own shard equal to the server's, change by change, until it takes over.
// Invariant: from the moment in which it takes over it takes nothing more from the stream, so that a server that was
// given up and lives can have nothing acknowledged. Knows nothing of gRPC.
// Thread safety: all methods may be called from any thread.
class StandbyReceiver {
 public:
  // The shard is new, and nobody else's to change until TakeOver. `on_lost` is called when the stream has ended.
  StandbyReceiver(uint32_t rank, ParameterShard* shard, std::function<void()> on_lost)
      : rank_(rank), shard_(shard), on_lost_(std::move(on_lost)), snapshot_(rank) {}

  // This process is a standby, of that incarnation.
  void Begin(uint64_t standby);

  // The first message of a stream. FAILED_PRECONDITION where it is not for this standby, or not the first stream.
  absl::Status Open(const internal::v1::ReplicateHello& hello);

  // The next message. Answers the position up to which the shard is equal once that has grown. After an error the
  // stream is of no use. FAILED_PRECONDITION once it has taken over.
  absl::StatusOr<std::optional<uint64_t>> Take(const internal::v1::ReplicateRequest& part);

  // The stream has ended.
  void Close();
  // Whether it has, or its server, which says something all the time, has not been heard of for too long.
  bool lost() const;

  // It is the server from now on. FAILED_PRECONDITION where it never was in step.
  absl::Status TakeOver();

 private:
  enum class Stage { kIdle, kLoading, kFollowing, kLost, kServer };

  absl::StatusOr<std::optional<uint64_t>> TakeRecordLocked(internal::v1::ReplicateRequest::Kind kind, uint64_t position,
                                                           absl::string_view record)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint32_t rank_;
  ParameterShard* const shard_;
  const std::function<void()> on_lost_;
  // Held while a change is made: a takeover comes before or after it.
  mutable absl::Mutex mutex_;
  uint64_t standby_ ABSL_GUARDED_BY(mutex_) = 0;
  Stage stage_ ABSL_GUARDED_BY(mutex_) = Stage::kIdle;
  bool complete_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t position_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time heard_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  // The parts so far of the record that comes.
  std::string parts_ ABSL_GUARDED_BY(mutex_);
  SnapshotAssembler snapshot_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast

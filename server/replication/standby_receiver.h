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
#include "server/replication/shard_stream.h"
#include "server/shard/parameter_shard.h"

namespace ballast {

// Owns a standby's side of the stream: makes its shard equal to the server's, change by change, until it takes over.
// Invariant: once it takes over, it accepts nothing from the stream, so a server that was declared lost but still
// runs cannot get anything acknowledged. It holds no lock while it applies a change, so heartbeats, which call lost()
// and TakeOver(), never block on one. Deliberately does not know gRPC.
// Thread safety: all methods may be called from any thread, Take from one at a time.
class StandbyReceiver {
 public:
  // `shard` must be new, and nothing else may change it until TakeOver. Calls `on_lost` when the stream has ended.
  StandbyReceiver(uint32_t rank, ParameterShard* shard, std::function<void()> on_lost)
      : rank_(rank), on_lost_(std::move(on_lost)), loader_(rank, shard) {}

  // Makes this process a standby with that incarnation.
  void Begin(uint64_t standby);

  // Takes the first message of a stream. FAILED_PRECONDITION if it is not for this standby, or not its first stream.
  absl::Status Open(const internal::v1::ReplicateRequest& first);

  // Takes the next message and returns the standby's progress. After an error the stream is unusable.
  // FAILED_PRECONDITION after the takeover.
  absl::StatusOr<internal::v1::ReplicateResponse> Take(const internal::v1::ReplicateRequest& part);

  // Reports that the stream has ended.
  void Close();
  // True if the stream has ended or, once the shard is whole, no message arrived within the server's timeout.
  bool lost() const;
  // True if this process is a standby that no server has sent anything to.
  bool awaits_server() const;
  // True while the standby has the whole shard and follows its server.
  bool following() const;

  // Makes this the server: accepts no more messages, and calls `done` once the change being applied, if any, is
  // applied. INTERNAL if the standby never had the whole shard.
  void TakeOver(std::function<void(absl::Status)> done);

 private:
  enum class Stage { kIdle, kFollowing, kLost, kServer };

  absl::Status ApplyMessage(const internal::v1::ReplicateRequest& part);

  const uint32_t rank_;
  const std::function<void()> on_lost_;
  // Used only by the thread that calls Take. `parts_` holds the parts of an incomplete record.
  ShardLoader loader_;
  std::string parts_;
  internal::v1::ReplicateResponse response_;
  mutable absl::Mutex mutex_;
  uint64_t standby_ ABSL_GUARDED_BY(mutex_) = 0;
  Stage stage_ ABSL_GUARDED_BY(mutex_) = Stage::kIdle;
  bool whole_ ABSL_GUARDED_BY(mutex_) = false;
  // True while a change is applied; taken_over_ is called after it.
  bool taking_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void(absl::Status)> taken_over_ ABSL_GUARDED_BY(mutex_);
  absl::Time last_message_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
};

}  // namespace ballast

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "grpcpp/alarm.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/status.h"

namespace ballast {

// What a call is called in errors, and how long it may take.
struct CallOptions {
  // "shard 1 at host:port: push"; asked when there is an error to tell.
  std::function<std::string()> what;
  // Of one attempt; a server's own wait included, so that its answer, which says whom it waited for, comes first.
  absl::Duration attempt_timeout;
  // After its first failure the call is tried again for so long.
  absl::Duration retry_timeout;
  // Of all attempts together.
  absl::Duration total_timeout;
};

// The pause before an attempt (from 2): `first`, doubling up to 2 s, of which a `jitter` in [0, 1] takes away up to
// half.
absl::Duration RetryBackoff(uint32_t attempt, double jitter, absl::Duration first);

// One unary call, tried again while it fails in passing: UNAVAILABLE, RESOURCE_EXHAUSTED, CANCELLED by the server (told
// as UNAVAILABLE in the end), no answer within attempt_timeout, or a few times for the reason NOT_OWNER. A
// DEADLINE_EXCEEDED that the server itself sent is final. No thread waits for it. Invariant: at most one attempt is on
// its way, its context is gone before the next begins, and before `done`, which is called once. Thread safety: all
// methods may be called from any thread.
class RetryingCall : public std::enable_shared_from_this<RetryingCall> {
 public:
  // Starts an asynchronous attempt that may take `time`, its deadline set already, and calls back with its end. What it
  // sends and receives outlives the callback.
  using Attempt =
      absl::AnyInvocable<void(grpc::ClientContext* context, absl::Duration time, std::function<void(grpc::Status)>)>;
  // Gets the end of the call and the number of attempts.
  using Done = absl::AnyInvocable<void(absl::Status, uint32_t attempts)>;

  RetryingCall(CallOptions options, Attempt attempt, Done done);

  // Once. The object keeps itself alive until done.
  void Start();

  // Ends the call with CANCELLED and the reason, soon, unless it has ended. May be called before Start.
  void Cancel(std::string reason);

  // For a call whose next attempt goes elsewhere: ends the attempt on its way, or the pause after one, so that the next
  // begins at once; what failed before does not count any more. Never ends the call.
  void RetryNow();

 private:
  void StartAttempt();
  void OnAttemptDone(const grpc::Status& status);
  void OnBackoffOver();
  absl::Status FinalStatusLocked(std::string what, const grpc::Status& status, bool no_answer) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const CallOptions options_;
  Attempt attempt_;
  Done done_;

  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::string cancel_reason_ ABSL_GUARDED_BY(mutex_);
  uint32_t attempts_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time started_ ABSL_GUARDED_BY(mutex_);
  // Since the start or the last RetryNow.
  absl::Time failing_since_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  uint32_t failures_ ABSL_GUARDED_BY(mutex_) = 0;
  // RetryNow was called since the last attempt began.
  bool hurried_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time attempt_deadline_ ABSL_GUARDED_BY(mutex_);
  // Shared so that Cancel and RetryNow can use them outside the lock while an attempt ends.
  std::shared_ptr<grpc::ClientContext> context_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast

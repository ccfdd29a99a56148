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
#include "common/rpc/call_attempt.h"
#include "grpcpp/alarm.h"
#include "grpcpp/support/status.h"

namespace ballast {

// The name and the timeouts of a call.
struct CallOptions {
  // Returns the name for errors, such as "shard 1 at host:port: push".
  std::function<std::string()> what;
  // Timeout of one attempt. Includes the server's own wait, so that the server's error, which names whom it waited for,
  // arrives first.
  absl::Duration attempt_timeout;
  // The call is retried until this long after its first failure.
  absl::Duration retry_timeout;
  // Timeout of all attempts together.
  absl::Duration total_timeout;
};

// Returns the pause before an attempt (from 2): `first`, doubling up to 2 s, reduced by jitter / 2 (jitter in [0, 1]).
absl::Duration RetryBackoff(uint32_t attempt, double jitter, absl::Duration first);

// Owns one unary call and retries it after transient failures: UNAVAILABLE, RESOURCE_EXHAUSTED, CANCELLED by the server
// (finally reported as UNAVAILABLE), no response within attempt_timeout, or, a few times, the reason NOT_OWNER. A
// DEADLINE_EXCEEDED sent by the server is final. Blocks no thread. Invariant: at most one attempt is in flight, and it
// is destroyed before the next attempt begins and before `done`, which is called once. Thread safety: all
// methods may be called from any thread.
class RetryingCall : public std::enable_shared_from_this<RetryingCall> {
 public:
  // Starts an asynchronous attempt that may take `time`; it already has the deadline. Calls back when the attempt ends.
  // Its request and response must outlive the callback.
  using Attempt =
      absl::AnyInvocable<void(CallAttempt* attempt, absl::Duration time, std::function<void(grpc::Status)>)>;
  // Receives the final status and the number of attempts.
  using Done = absl::AnyInvocable<void(absl::Status, uint32_t attempts)>;

  RetryingCall(CallOptions options, Attempt attempt, Done done);

  // Call it once. The object keeps itself alive until `done`.
  void Start();

  // Soon ends the call with CANCELLED and the reason, unless it has ended. May be called before Start.
  void Cancel(std::string reason);

  // For a call whose next attempt uses another address: ends the current attempt or pause, so that the next attempt
  // begins at once, and forgets earlier failures. Never ends the call.
  void RetryNow();

 private:
  void StartAttempt();
  void OnAttemptDone(const grpc::Status& status);
  void OnBackoffOver();
  absl::Status FinalStatusLocked(std::string what, const grpc::Status& status, bool no_response) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const CallOptions options_;
  Attempt attempt_;
  Done done_;

  absl::Mutex mutex_;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  std::string cancel_reason_ ABSL_GUARDED_BY(mutex_);
  uint32_t attempts_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time started_ ABSL_GUARDED_BY(mutex_);
  // Time of the first failure since the start or the last RetryNow.
  absl::Time failing_since_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  uint32_t failures_ ABSL_GUARDED_BY(mutex_) = 0;
  // RetryNow was called after the last attempt began.
  bool retry_now_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time attempt_deadline_ ABSL_GUARDED_BY(mutex_);
  // Shared, so that Cancel and RetryNow can use them outside the lock while an attempt ends.
  std::shared_ptr<CallAttempt> current_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<grpc::Alarm> alarm_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
